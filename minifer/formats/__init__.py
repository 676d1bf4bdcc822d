"""Weight files: what is inside a GGUF file or a Hugging Face folder, checked before a single number is used.

    mapped.py             open a file as mapped memory, with errors for people
    gguf.py               llama.cpp's container: header parser of our own, dequantising
    safetensors.py        Hugging Face's container: header parser, sharded folders, bfloat16
    hf_names.py           the two naming schemes, and the two row orders of Q and K
    tensors.py            one door to all of them: Hugging Face name -> float32 array
    cache.py              the float32 form of a quantised file, kept for the second start
    digest.py             a file's SHA-256, remembered
    fetch.py              a download by this machine's package client, kept in bounds
    atomic.py             a file is written as a whole or not at all
    vocab_files.py        vocabularies: tokenizer.json, GGUF metadata, tiktoken rank files, checked; and writing them
    write_safetensors.py  the way back, for the cache and the export
    write_gguf.py         the way back to llama.cpp

This package knows about bytes, names and shapes. It knows nothing of attention or of tokens: see `minifer.model`.
"""
