"""Meta's original layout: params.json, consolidated.NN.pth, tokenizer.model, converted to the HF layout."""
