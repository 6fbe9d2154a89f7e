// Which parts of the page hold the words in the search field? The others are hidden.
"use strict";

const field = document.getElementById("search");
const told = document.getElementById("found");
const parts = [...document.querySelectorAll(".part")].map((part) => [part, wordsOf(part).toLowerCase()]);
const groups = [...document.querySelectorAll(".group")];
const wereOpen = new Set(document.querySelectorAll("details[open]"));

// What a part says, and the headings above it.
function wordsOf(part) {
  const above = [];
  for (let group = part.closest(".group"); group; group = group.parentElement.closest(".group")) {
    above.push(group.firstElementChild.textContent);
  }
  return `${above.join(" ")} ${part.textContent}`;
}

function search() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const [part, text] of parts) {
    part.hidden = !words.every((word) => text.includes(word));
    count += part.hidden ? 0 : 1;
  }
  for (const group of groups) {
    group.hidden = words.length > 0 && !group.querySelector(".part:not([hidden])");
    for (const item of [group, ...group.querySelectorAll(".part")]) {
      if (item.tagName === "DETAILS") item.open = words.length ? !item.hidden && count <= 50 : wereOpen.has(item);
    }
  }
  told.textContent = words.length ? `${count.toLocaleString("en")} of ${parts.length.toLocaleString("en")}` : "";
}

field.addEventListener("input", search);
search();
