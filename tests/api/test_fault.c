/* test_fault.c - the kind of error that each status has, in the words of the API. */
#include "tests/unit.h"
#include "api/fault.h"

TEST(each_status_has_its_type)
{
    static const struct {
        int status;
        const char *type;
    } cases[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
                 {403, "permission_error"},      {404, "not_found_error"},
                 {405, "invalid_request_error"}, {409, "invalid_request_error"},
                 {413, "invalid_request_error"}, {429, "rate_limit_error"},
                 {499, "invalid_request_error"}, {500, "server_error"},
                 {501, "server_error"},          {503, "server_error"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fault f;
        assert_int_equal(fault_set(&f, cases[i].status, NULL, NULL, "no"), -1);
        assert_int_equal(f.status, cases[i].status);
        assert_string_equal(f.type, cases[i].type);
    }
}
