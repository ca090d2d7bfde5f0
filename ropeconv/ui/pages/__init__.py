"""The pages, one file each: the components of a form and where its answer stands. These modules import Gradio."""
