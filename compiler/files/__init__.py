"""A user's files: opening what may be anything (`opening`), writing what replaces nothing else (`outputs`, `marks`)."""
