"""The list of Hugging Face architectures, and how a tiny model of each is made and checked."""
