document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const text = button.parentElement.querySelector("pre");
  navigator.clipboard.writeText(text.textContent).then(
    () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); },
    () => window.getSelection().selectAllChildren(text),  // to be copied by keyboard, where a browser does not let us
  );
});
