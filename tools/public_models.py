"""The public forms of Baton's two model families, config.json and names of tensors, and what of them Baton has.

gla          models of the fla package ("model_type": "gla"), of today and of its first checkpoints, whose feed-forward
             has gate and up in one matrix and whose embedding is called embed_tokens
transnormer  TransNormerLLM (OpenNLPLab)

A model is a dict: Baton's keys of section [model]. What the other side has no setting for is refused by name.
"""
from safetensors_file import Tensor

DEFAULTS = {"family": "gla", "mixer": "vector", "layers": 0, "width": 0, "heads": 0, "expand_k": 0.5, "expand_v": 1.0,
            "ffn": 0, "vocab": 0, "low_rank": 16, "gate_temperature": 16.0, "gate_bias": False, "norm": "auto",
            "norm_eps": 1e-6, "tie_embeddings": False, "init_std": 0.02, "slope": "alibi", "lrpe_layers": "0"}

# Keys of config.json that say nothing of the numbers a model computes.
NO_EFFECT = set("""architectures auto_map transformers_version torch_dtype dtype _name_or_path use_cache pad_token_id
bos_token_id eos_token_id add_bos_token max_position_embeddings attn_mode conv_size conv_bias share_conv_kernel fuse_norm
fuse_swiglu fuse_cross_entropy fuse_linear_cross_entropy use_l2warp""".split())
# Keys that must have one value where they are there.
FIXED = {
    "gla": {"feature_map": None, "use_short_conv": False, "use_output_gate": True, "clamp_min": None,
            "elementwise_affine": True, "use_gk": True, "use_gv": False, "attn": None, "attnres_block_size": None,
            "gate_logit_normalizer": 16, "gate_low_rank_dim": 16},
    "transnormer": {"no_scale_embedding": False, "bias": False, "norm_type": "simplermsnorm"},
}
# Baton's keys that a public model has no setting for.
BATON_FIXED = {
    "gla": {"mixer": "vector", "low_rank": 16, "gate_temperature": 16.0, "gate_bias": False, "norm": "rmsnorm"},
    "tnl": {"norm": "simple_rmsnorm", "norm_eps": 1e-6, "slope": "alibi"},
}


class Config:
    """config.json, from which every key is taken once; what is left over at the end is not known."""

    def __init__(self, config):
        self.config = dict(config)

    def take(self, key, default=None, required=True):
        if key not in self.config and default is None and required:
            raise ValueError(f"config.json: {key} is missing")
        return self.config.pop(key, default)

    def finish(self, family):
        for key, expected in FIXED[family].items():
            value = self.config.pop(key, expected)
            if value != expected:
                raise ValueError(f"config.json: {key} = {value}: must be {expected}, Baton has no other")
        for key in self.config.keys() - NO_EFFECT:
            raise ValueError(f"config.json: {key} = {self.config[key]}: is not known, and may change the model")


def check_silu(key, value):
    if value not in ("silu", "swish"):
        raise ValueError(f"config.json: {key} = {value}: must be silu or swish, Baton has no other")


def gla_model(config):
    width, heads = config.take("hidden_size"), config.take("num_heads")
    ratio, ffn = config.take("hidden_ratio", required=False) or 4, config.take("intermediate_size", required=False)
    kv_heads = config.take("num_kv_heads", required=False)
    if kv_heads not in (None, heads):
        raise ValueError(f"config.json: num_kv_heads = {kv_heads}: must be num_heads = {heads}, Baton has no other")
    check_silu("hidden_act", config.take("hidden_act", "swish"))
    eps = config.take("rms_norm_eps", 1e-6)  # its first name
    return {"family": "gla", "layers": config.take("num_hidden_layers"), "width": width, "heads": heads,
            "expand_k": config.take("expand_k", 0.5), "expand_v": config.take("expand_v", 1.0),
            "ffn": ffn or (int(width * ratio * 2 / 3) + 255) // 256 * 256, "norm": "rmsnorm",
            "norm_eps": config.take("norm_eps", eps), "init_std": config.take("initializer_range", 0.02)}


def transnormer_model(config):
    width, inner, glu = config.take("decoder_embed_dim"), config.take("hidden_dim"), config.take("glu_dim")
    if inner != width:
        raise ValueError(f"config.json: hidden_dim = {inner}: must be decoder_embed_dim = {width}, Baton has no other")
    check_silu("linear_act_fun", config.take("linear_act_fun", "silu"))
    layers, lrpe = config.take("decoder_layers"), config.take("linear_use_lrpe_list", [])
    return {"family": "tnl", "layers": layers, "width": width, "heads": config.take("decoder_attention_heads"),
            "ffn": width if glu == -1 else glu, "norm": "simple_rmsnorm", "norm_eps": 1e-6,
            "init_std": config.take("init_std", 0.02),
            "lrpe_layers": ",".join(str(l) for l, used in enumerate(lrpe) if used) or "none"}


def model_of(config, names):
    """Baton's model of a config.json, for a checkpoint that holds tensors of these names."""
    config = Config(config)
    family = config.take("model_type")
    if family not in FIXED:
        raise ValueError(f"config.json: model_type = {family}: must be {' or '.join(FIXED)}")
    model = {**DEFAULTS, **{"gla": gla_model, "transnormer": transnormer_model}[family](config)}
    model["vocab"] = config.take("vocab_size")
    # transformers leaves the key out where it has the default, which is not the same in all its versions.
    model["tie_embeddings"] = config.take("tie_word_embeddings", "lm_head.weight" not in names)
    model["gate_bias"] = any(name.endswith("attn.g_proj.bias") for name in names)  # of the first checkpoints
    config.finish(family)
    return model


def shapes_of(m):
    """name -> shape of every tensor of a model, in Baton's names."""
    D, F, H = m["width"], m["ffn"], m["heads"]
    keys, values, low = round(D * m["expand_k"]), round(D * m["expand_v"]), m["low_rank"]
    gla = m["family"] == "gla"
    shapes = {"model.embeddings.weight" if gla else "model.embed_tokens.weight": (m["vocab"], D)}
    lrpe = [] if m["lrpe_layers"] == "none" else m["lrpe_layers"].split(",")
    for l in range(m["layers"]):
        layer = {"attn_norm.weight": (D,), "attn.q_proj.weight": (keys, D), "attn.k_proj.weight": (keys, D),
                 "attn.v_proj.weight": (values, D), "attn.g_proj.weight": (values, D),
                 "attn.gk_proj.0.weight": (low, D), "attn.gk_proj.1.weight": (keys, low), "attn.gk_proj.1.bias": (keys,),
                 "attn.g_norm_swish_gate.weight": (values // H,), "attn.o_proj.weight": (D, values),
                 "mlp_norm.weight": (D,), "mlp.gate_proj.weight": (F, D), "mlp.up_proj.weight": (F, D),
                 "mlp.down_proj.weight": (D, F)} if gla else {
                     "token_mixer.qkvu_proj.weight": (4 * D, D), "token_mixer.out_proj.weight": (D, D),
                     "channel_mixer.l1.weight": (F, D), "channel_mixer.l2.weight": (F, D),
                     "channel_mixer.l3.weight": (D, F)}
        if gla and m["gate_bias"]:
            layer["attn.g_proj.bias"] = (values,)
        if not gla and (lrpe == ["all"] or str(l) in lrpe):
            layer["token_mixer.lrpe.theta"] = (H, 1, D // H)
        shapes.update({f"model.layers.{l}.{name}": shape for name, shape in layer.items()})
    if gla:
        shapes["model.norm.weight"] = (D,)
    if not m["tie_embeddings"]:
        shapes["lm_head.weight"] = (m["vocab"], D)
    return shapes


def weights_of(model, tensors):
    """The tensors of a public checkpoint in Baton's names and shapes; anything missing or left over is refused."""
    found = dict(tensors)
    if model["family"] == "gla":
        found = {name.replace(".embed_tokens.", ".embeddings.").replace(".g_norm.", ".g_norm_swish_gate."): x
                 for name, x in found.items()}
        F, D = model["ffn"], model["width"]
        for name, x in list(found.items()):
            up = name.replace("mlp.gate_proj", "mlp.up_proj")
            if up != name and up not in found and x.shape == (2 * F, D):  # both in one, gate first
                found[name] = Tensor(x.dtype, (F, D), lambda x=x: x.read()[:F])
                found[up] = Tensor(x.dtype, (F, D), lambda x=x: x.read()[F:])
    if model["tie_embeddings"] and "lm_head.weight" in found:
        raise ValueError("lm_head.weight: is there, although tie_word_embeddings = True")
    return check(model, found)


def check(model, tensors):
    """The same tensors, in the order of the model; names and shapes must be its own."""
    shapes = shapes_of(model)
    for name in tensors.keys() - shapes.keys():
        raise ValueError(f"{name}: is no tensor of Baton's {model['family']} model")
    for name, shape in shapes.items():
        if name not in tensors:
            raise ValueError(f"{name}: is missing")
        if tensors[name].shape != shape:
            raise ValueError(f"{name}: has shape {list(tensors[name].shape)}, but the configuration makes it {list(shape)}")
    return {name: tensors[name] for name in shapes}


def config_of(model, dtype):
    """config.json of a model of Baton's, whose numbers have that dtype."""
    for key, expected in BATON_FIXED[model["family"]].items():
        if model[key] != expected:
            raise ValueError(f"model.{key} = {model[key]}: a public checkpoint has {expected} and no setting for it")
    common = {"vocab_size": model["vocab"], "tie_word_embeddings": model["tie_embeddings"], "torch_dtype": dtype}
    if model["family"] == "gla":
        return {"architectures": ["GLAForCausalLM"], "model_type": "gla", "hidden_size": model["width"],
                "num_hidden_layers": model["layers"], "num_heads": model["heads"], "expand_k": model["expand_k"],
                "expand_v": model["expand_v"], "intermediate_size": model["ffn"], "hidden_act": "swish",
                "norm_eps": model["norm_eps"], "initializer_range": model["init_std"], "fuse_norm": True, **common}
    lrpe = model["lrpe_layers"].split(",")
    return {"architectures": ["TransnormerForCausalLM"], "model_type": "transnormer",
            "decoder_embed_dim": model["width"], "hidden_dim": model["width"], "decoder_layers": model["layers"],
            "decoder_attention_heads": model["heads"], "glu_dim": model["ffn"], "norm_type": "simplermsnorm",
            "linear_act_fun": "silu", "linear_use_lrpe_list": [int(lrpe == ["all"] or str(l) in lrpe)
                                                               for l in range(model["layers"])],
            "no_scale_embedding": False, "bias": False, "init_std": model["init_std"], **common}
