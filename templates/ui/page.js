document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent).then(() => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
});
