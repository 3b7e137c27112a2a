// chat.cpp - the chat of chat.c in C++.
//
//     c++ -std=c++17 -o chat chat.cpp $(pkg-config --cflags --libs hcache)
//     ./chat MODEL_DIR STORE_DIR
#include <hcache.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(int rc, const hcache_err &err)
{
    if (rc != 0)
        throw std::runtime_error(err.msg);
}

std::string json_string(const std::string &text)
{
    std::string out = "\"";
    for (unsigned char c : text) {
        char escaped[8];
        if (c == '"' || c == '\\' || c < 0x20) {
            std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
            out += escaped;
        } else {
            out += static_cast<char>(c);
        }
    }
    return out + "\"";
}

class Chat {
public:
    Chat(const char *model, const char *store)
    {
        hcache_opts o = {};
        o.model = model;
        o.store = &store;
        o.n_store = 1;
        hcache *opened = nullptr;
        hcache_err err;
        check(hcache_open(&o, &opened, &err), err);
        h.reset(opened);
    }

    void ask(const std::string &question)
    {
        add("user", question);
        std::vector<int32_t> prompt = encode("{\"messages\":" + messages + "]}");
        hcache_request q = {};
        q.prompt = prompt.data();
        q.n_prompt = static_cast<int>(prompt.size());
        q.max_tokens = 256;
        q.on_token = [](void *, int32_t, const char *text, size_t n) {
            std::cout.write(text, static_cast<std::streamsize>(n)).flush();
            return 0;
        };
        hcache_result r;
        hcache_err err;
        check(hcache_generate(h.get(), &q, &r, &err), err);
        std::cout << "\n[" << r.cached_tokens << " of " << r.prompt_tokens
                  << " prompt tokens came from saved state]\n";
        add("assistant", std::string(r.text, r.n_text));
        hcache_result_free(&r);
    }

private:
    void add(const std::string &role, const std::string &content)
    {
        messages += messages.empty() ? "[" : ",";
        messages += "{\"role\":" + json_string(role) + ",\"content\":" + json_string(content) + "}";
    }

    std::vector<int32_t> encode(const std::string &request)
    {
        char *text = nullptr;
        size_t n_text = 0;
        int32_t *ids = nullptr;
        int n_ids = 0;
        hcache_err err;
        check(hcache_chat_render(h.get(), request.data(), request.size(), &text, &n_text, &err), err);
        int rc = hcache_encode(h.get(), text, n_text, HCACHE_PARSE_SPECIAL, &ids, &n_ids, &err);
        hcache_free(text);
        check(rc, err);
        std::vector<int32_t> out(ids, ids + n_ids);
        hcache_free(ids);
        return out;
    }

    struct Closer {
        void operator()(hcache *opened) const { hcache_close(opened); }
    };
    std::unique_ptr<hcache, Closer> h;
    std::string messages; // a JSON array without its closing bracket
};

} // namespace

int main(int argc, char **argv)
{
    if (argc != 3) {
        std::cerr << "usage: chat MODEL_DIR STORE_DIR\n";
        return 2;
    }
    try {
        Chat chat(argv[1], argv[2]);
        for (std::string line; std::getline(std::cin, line);)
            chat.ask(line);
    } catch (const std::exception &e) {
        std::cerr << "chat: " << e.what() << "\n";
        return 1;
    }
}
