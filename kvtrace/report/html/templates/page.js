// What every page does: its theme, and commands that can be copied.
document.documentElement.classList.add("js");

document.getElementById("theme").addEventListener("change", (event) => {
  document.documentElement.dataset.theme = event.target.value;
});

for (const button of document.querySelectorAll(".command button"))
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // No clipboard for a file in some browsers: the command is selected instead.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    document.getElementById("said").textContent = button.textContent === "Copied" ? "Command copied" : "Command selected";
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
