"""The driver for llama.cpp's ``llama-server``: `client.LlamaServer`. Importing this loads nothing."""
