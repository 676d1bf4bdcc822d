"""Weight files: what is inside a GGUF file or a Hugging Face folder, checked before a single number is used.

    mapped.py       open a file as mapped memory, with errors for people
    gguf.py         llama.cpp's container: header parser of our own, dequantising
    safetensors.py  Hugging Face's container: header parser, sharded folders, bfloat16
    hf_names.py     the two naming schemes and the two row orders of Q and K
    cache.py        the float32 form of a quantised file, kept for the second start
    tensors.py      one mapping for all of them: Hugging Face name -> float32 array
    export.py       the way back: our weights as a GGUF file or a Hugging Face folder

This package knows about bytes, names and shapes. It knows nothing of attention or of tokens: see `minifer.model`.
"""
