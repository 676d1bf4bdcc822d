"""The vocabularies that the tests of this phase share."""

import pytest
from tokenizing import rank_file

from minifer.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tiny():
    """The bundled vocabulary: 1,200 tokens, all 256 bytes."""
    from minifer.hub import tiny_folder

    return Tokenizer.from_pretrained(tiny_folder())


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    """SmolLM2's vocabulary from its GGUF file; only for tests marked `model`."""
    return Tokenizer.from_pretrained(smollm2_path)


@pytest.fixture(scope="session")
def openai(test_data):
    """OpenAI's vocabularies by name, loaded when first asked for."""
    loaded = {}

    def get(name):
        if name not in loaded:
            loaded[name] = Tokenizer.from_pretrained(rank_file(test_data, f"{name}_base"))
        return loaded[name]

    return get
