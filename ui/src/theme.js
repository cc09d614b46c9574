// Light or dark: as the system has it, or as chosen here.
import { computed, effect, signal } from "@preact/signals";

const NAME = "glidemq-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const system = signal(dark.matches);
dark.addEventListener("change", () => (system.value = dark.matches));

function stored() {
  try {
    return localStorage.getItem(NAME) ?? "system";
  } catch {
    return "system"; // storage may be refused
  }
}

export const choice = signal(stored());
export const theme = computed(() =>
  choice.value === "light" || choice.value === "dark" ? choice.value : system.value ? "dark" : "light");

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem(NAME, choice.value);
  } catch {
    // then the choice holds for this page
  }
});
