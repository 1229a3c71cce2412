"""A user's files: opening what may be anything (`opening`), writing what replaces nothing else (`outputs`, `marks`),
checksums (`checksums`), and the folder of what was compiled before (`kept`)."""
