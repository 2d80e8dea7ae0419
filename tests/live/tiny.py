"""A model, a tokenizer and a data set small enough to train in a minute on a CPU, made here: nothing is fetched.

Runs in the environment that has torch and transformers, not in the exporter's own.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

SUBJECTS = ("the harbour pilot", "a patient baker", "the night train", "our oldest lighthouse", "a grey heron", "the mason")
VERBS = ("waits for", "carries", "counts", "forgets", "repairs", "follows", "measures", "paints")
OBJECTS = ("the morning tide", "two baskets of rye", "a row of lamps", "the long bridge", "every second boat", "the bell")
ENDINGS = ("before the rain", "without a word", "until the clock strikes", "as it did last winter", "and then goes home")
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def sentences(number: int, *, seed: int = 7) -> list[str]:
    """Sentences with enough order in them that a loss falls, and enough chance that it never reaches 0."""
    chance = random.Random(seed)
    parts = (SUBJECTS, VERBS, OBJECTS, ENDINGS)
    return [" ".join(chance.choice(part) for part in parts) + "." for _ in range(number)]


def save_model(directory: Path) -> None:
    """Write a Llama of some 60,000 parameters with its tokenizer, as a hub would have delivered them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    set_seed(7)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=384, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(sentences(500), trainer)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    fast.save_pretrained(directory)
    LlamaForCausalLM(config).save_pretrained(directory)


def save_instructions(directory: Path, *, number: int = 400) -> None:
    """Write an alpaca data set and the index that LLaMA-Factory wants beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [{"instruction": "Go on: " + text[:24], "input": "", "output": text[24:]} for text in sentences(number)]
    (directory / "sentences.json").write_text(json.dumps(rows), encoding="utf-8")
    index = {"sentences": {"file_name": "sentences.json"}}
    (directory / "dataset_info.json").write_text(json.dumps(index), encoding="utf-8")
