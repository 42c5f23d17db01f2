"use strict";

// What a program in Node sees of a transaction. They need root, the command (PANDO_COMMAND, or in the path) and libpando.

const assert = require("node:assert/strict");
const { spawn, spawnSync, execFileSync } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { after, before, beforeEach, test } = require("node:test");

const command = process.env.PANDO_COMMAND ?? spawnSync("sh", ["-c", "command -v pando"]).stdout.toString().trim();
const skip = process.getuid() !== 0 ? "transactions need root" : command === "" ? "the command is not there: set PANDO_COMMAND" : false;

let root, daemon, file, pando;

before(() => {
  if (skip) return;
  root = fs.mkdtempSync(path.join(os.tmpdir(), "pando-node-"));
  process.env.PANDO_ROOT = root;
  pando = require("..");
  daemon = spawn(command, ["--root", root, "daemon"], { stdio: "ignore" });
  execFileSync("sh", ["-c", `for try in $(seq 500); do [ -S ${root}/run/pando/pando.sock ] && exit; sleep .02; done; exit 1`]);
});

after(async () => {
  if (skip) return;
  const ended = new Promise((resolve) => daemon.on("exit", resolve));
  daemon.kill();
  await ended;
  fs.rmSync(root, { recursive: true, force: true });
});

beforeEach(() => {
  if (skip) return;
  file = path.join(fs.mkdtempSync(path.join(root, "files-")), "file");
  fs.writeFileSync(file, "before");
});

// Somebody outside, who writes to the file once it is asked for: a fifo's other end, which was there before.
function somebody() {
  const [asked, done] = [`${file}.asked`, `${file}.done`];
  execFileSync("mkfifo", [asked, done]);
  spawn("sh", ["-c", `read word <${asked}; printf outside >${file}; echo >${done}`], { stdio: "ignore" });
  const ask = fs.openSync(asked, "r+");
  const answer = fs.openSync(done, "r+");
  return () => {
    fs.writeSync(ask, "go\n");
    fs.readSync(answer, Buffer.alloc(1));
  };
}

test("the end of the function commits", { skip }, () => {
  const said = pando.transaction(
    () => {
      fs.writeFileSync(file, "inside");
      assert.equal(pando.status(), pando.Status.ACTIVE);
      return 7;
    },
    { durable: true },
  );
  assert.deepEqual([said, fs.readFileSync(file, "utf8"), pando.status()], [7, "inside", pando.Status.NONE]);
});

test("an exception aborts", { skip }, () => {
  const work = () => {
    fs.writeFileSync(file, "inside");
    fs.mkdirSync(`${file}.made`);
    throw new RangeError("mine");
  };
  assert.throws(() => pando.transaction(work), /mine/);
  assert.deepEqual([fs.readFileSync(file, "utf8"), fs.existsSync(`${file}.made`)], ["before", false]);
});

test("what is awaited is refused", { skip }, () => {
  assert.throws(() => pando.transaction(async () => fs.writeFileSync(file, "inside")), /synchronous/);
  assert.equal(fs.readFileSync(file, "utf8"), "before");
});

test("a conflict names what others have changed, and the function runs again where that is wanted", { skip }, () => {
  for (const retry of [0, 2]) {
    fs.rmSync(`${file}.asked`, { force: true });
    fs.rmSync(`${file}.done`, { force: true });
    const outside = somebody();
    const work = (tries) => {
      const seen = fs.readFileSync(file, "utf8");
      if (tries === 0) outside();
      fs.writeFileSync(file, `${seen}+`);
      return tries;
    };
    if (retry === 0) {
      assert.throws(() => pando.transaction(work), (error) => error instanceof pando.Conflict && error.object === file);
      assert.equal(fs.readFileSync(file, "utf8"), "outside");
    } else {
      assert.equal(pando.transaction(work, { retry }), 1);
      assert.equal(fs.readFileSync(file, "utf8"), "outside+");
    }
  }
});

test("programs inside are a part of it", { skip }, () => {
  const work = () => {
    execFileSync("sh", ["-c", `echo inside >${file}`]);
    assert.equal(fs.readFileSync(file, "utf8"), "inside\n");
    throw new Error("enough");
  };
  assert.throws(() => pando.transaction(work), /enough/);
  assert.equal(fs.readFileSync(file, "utf8"), "before");
});

test("what is wrong is said", { skip }, () => {
  assert.throws(() => pando.transaction(() => pando.transaction(() => 0)), /do not nest/);
  assert.throws(() => pando.transaction(() => 0, { retry: -1 }), RangeError);
  assert.equal(pando.status(), pando.Status.NONE);
});
