"""What tests of generating models share."""
