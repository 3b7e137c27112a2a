"""The Llama architecture in plain PyTorch, with Hugging Face's parameter names.

The residual stream is kept in the parameters' dtype between layers: with bf16 parameters it is
rounded at every layer boundary, as the engine does. Norms, rotations and softmax run in f32.
"""
import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64,
    "vocab_size": 3072, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "rope_theta": 10000000.0, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
    "initializer_range": 0.02, "use_cache": True,
    "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
}


class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_tables(head_dim, theta, length):
    freq = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), freq)
    angle = torch.cat((angle, angle), -1)
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos + turned * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["hidden_size"]
        self.heads = c["num_attention_heads"]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x, cos, sin, past=None):
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, self.heads, -1).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mask = None
        if past is not None:  # `past` is [] or [k, v] of the earlier tokens
            if past:
                mask = torch.ones(t, t + past[0].shape[2], dtype=torch.bool).tril(past[0].shape[2])
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            past[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, d))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, eps = c["hidden_size"], c["rms_norm_eps"]
        self.self_attn, self.mlp = Attention(c), MLP(c)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(d, eps), RMSNorm(d, eps)

    def forward(self, x, cos, sin, past=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    def __init__(self, c=None):
        super().__init__()
        self.c = c = dict(c or CONFIG)
        self.model = Body(c)
        cos, sin = rope_tables(c["head_dim"], c["rope_theta"], c["max_position_embeddings"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self):
        """Draws random weights. Then makes an induction circuit of the first two layers (see
        `induction`)."""
        layers = self.c["num_hidden_layers"]
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5
                                if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02)
        induction(self)

    def hidden(self, ids, past=None):
        """Returns the normed hidden states [B][T][d] of ids [B][T], the input of the (tied) output
        head. `past` is a list with one empty list per layer. It is filled here, and passed again
        with the next token."""
        x = self.model.embed_tokens(ids)
        first = past[0][0].shape[2] if past and past[0] else 0
        cos, sin = (t[first:first + ids.shape[1]] for t in (self.cos, self.sin))
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, past[i] if past else None)
        return self.model.norm(x)

    def forward(self, ids):
        return self.hidden(ids) @ self.model.embed_tokens.weight.T


@torch.no_grad()
def induction(model, spread=0.25, sharp=3.5, copy=3.0):
    """Starts layers 0 and 1 as "what followed the last four tokens when they stood here before?".

    Such a circuit emerges by itself in any long training; two shared cores have no time for that,
    so training starts from it and only has to make it good. For 256 channels and 4 heads of 64:

        channel 0         the same number in every embedding
        channels 1-127    the token (random)
        channels 128-255  four slots of 32: the tokens 1, 2, 3, 4 places back, projected

    Layer 0: channel 0 becomes, by W_q and W_k, vectors whose rotations agree at one distance only
    (the 12 fastest rotations); head h copies the token h + 1 places back into slot h.
    Layer 1: a query holds the token itself and slots 0-2, a key slots 0-3, so they agree where the
    same four tokens stood *before* the key. Only the 16 slowest rotations carry this: at a
    distance of 2048 the fastest of them has turned by 0.65. Each head sees 8 channels of each slot.
    The values copy the token's channels, whose (tied) output row is then the best.
    """
    c = model.c
    d, heads, hd = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
    assert (d, heads, hd) == (256, 4, 64)
    half, fast, slots, token = hd // 2, 12, 128, slice(1, 128)
    embed = model.model.embed_tokens.weight
    nn.init.normal_(embed[:, token], std=spread)
    embed[:, 0], embed[:, slots:] = 1.0, 0.0
    model.model.norm.weight.fill_(0.1)  # keeps the first logits small, since the head is tied
    project = nn.init.orthogonal_(torch.empty(32, 127))

    q, k, v, o = (getattr(model.model.layers[0].self_attn, n + "_proj").weight for n in "qkvo")
    for p in (q, k, v, o):
        p.zero_()
    freq = c["rope_theta"] ** (-torch.arange(0, hd, 2) / hd)[:fast]
    for h in range(heads):
        re, im = (slice(h * hd + x, h * hd + x + fast) for x in (0, half))
        q[re, 0], q[im, 0] = 2 * torch.cos(-(h + 1) * freq), 2 * torch.sin(-(h + 1) * freq)
        k[re, 0] = 2
        v[h * hd:h * hd + 32, token] = project
        # rms of the embedding
        o[slots + 32 * h:slots + 32 * h + 32, h * hd:h * hd + 32] = 0.187 * torch.eye(32)

    q, k, v, o = (getattr(model.model.layers[1].self_attn, n + "_proj").weight for n in "qkvo")
    for p in (q, k, v, o):
        p.zero_()
    for h in range(heads):
        for back in range(4):
            pairs = torch.arange(half - 16 + 4 * back, half - 12 + 4 * back)
            dims = h * hd + torch.cat((pairs, pairs + half))
            seen = torch.arange(8) + 8 * h  # the part of a slot that this head sees
            k[dims, slots + 32 * back + seen] = sharp
            if back:
                q[dims, slots + 32 * (back - 1) + seen] = sharp
            else:
                q[dims, token] = sharp * project[seen]
        side = h % 2                             # two heads copy channels 1-63, two 64-127
        n = 63 if side == 0 else 64
        first = 1 if side == 0 else 64
        v[h * hd:h * hd + n, first:first + n] = torch.eye(n)
        o[first:first + n, h * hd:h * hd + n] = copy * spread * torch.eye(n)
