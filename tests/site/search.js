// Answer queries, one a line of standard input, with Sphinx's search of a built site:
//   node search.js SITE
// Each answer is a line of JSON: the pages and anchors in the order in which a reader sees them.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const site = process.argv[2];
const context = vm.createContext({
  SPHINX_HIGHLIGHT_ENABLED: false,
  _: (text) => text,
  _ready: () => {},
  document: { getElementById: () => null },
  console,
});
context.window = context;
const parts = ["base-stemmer.js", "english-stemmer.js", "language_data.js", "searchtools.js"]
  .map((name) => path.join(site, "_static", name))
  .concat(path.join(site, "searchindex.js"))
  .filter((file) => fs.existsSync(file)); // some versions have the stemmer in language_data.js
const program = parts.map((file) => fs.readFileSync(file, "utf8")).join("\n;\n");
vm.runInContext(
  `${program}
  ;var answer = (query) => Search._performSearch(...Search._parseQuery(query)).reverse()
    .map(([page, title, anchor]) => page + anchor);`,
  context,
);
for (const query of fs.readFileSync(0, "utf8").split("\n").filter((line) => line)) {
  console.log(JSON.stringify(context.answer(query).slice(0, 10)));
}
