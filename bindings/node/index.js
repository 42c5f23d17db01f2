"use strict";

const koffi = require("koffi");

const NAME = "libpando.so.0";
// Where it is looked for after the places that the dynamic linker knows.
const PLACES = ["/usr/local/lib", "/usr/lib"];

// As in pando.h. The threads that Node has beside are outside.
const Flag = Object.freeze({ DURABLE: 1, WARN: 8, THREAD: 16 });
const Ended = Object.freeze({ ERROR: -1, COMMITTED: 0, CONFLICT: 1 });
const Status = Object.freeze({ NONE: 0, ACTIVE: 1, OTHER_THREAD: 2, PART: 3 });

// Milliseconds to rest before another try, for each try before, and at most.
const REST = 0.5;
const LONGEST_REST = 20;

class PandoError extends Error {
  constructor(reason, object = "") {
    super(reason);
    this.name = new.target.name;
    this.object = object;
  }
}

class Conflict extends PandoError {}

let loaded;

function library() {
  if (loaded === undefined) {
    const told = process.env.PANDO_LIBRARY;
    const tried = told ? [told] : [NAME, ...PLACES.map((place) => `${place}/${NAME}`)];
    const found = tried.reduce((found, path) => found ?? load(path), undefined);
    if (found === undefined) {
      throw new PandoError(`libpando is not installed: none of ${tried.join(", ")} can be loaded`, NAME);
    }
    loaded = {
      begin: found.func("int pando_tx_begin(unsigned int flags)"),
      end: found.func("int pando_tx_end()"),
      abort: found.func("int pando_tx_abort(int no_restart)"),
      status: found.func("int pando_tx_status()"),
      reason: found.func("const char *pando_tx_reason()"),
      object: found.func("const char *pando_tx_object()"),
    };
  }
  return loaded;
}

function load(path) {
  try {
    return koffi.load(path);
  } catch {
    return undefined;
  }
}

function failure(Kind) {
  return new Kind(library().reason(), library().object());
}

function status() {
  return library().status();
}

function transaction(work, { durable = false, retry = 0, warn = false } = {}) {
  if (!Number.isInteger(retry) || retry < 0) {
    throw new RangeError("retry is how often it runs again: 0 or more");
  }
  const flags = Flag.THREAD | (durable ? Flag.DURABLE : 0) | (warn ? Flag.WARN : 0);
  for (let tries = 0; ; tries++) {
    if (library().begin(flags) < 0) {
      throw failure(PandoError);
    }
    const result = inside(work, tries);
    const ended = library().end();
    if (ended === Ended.COMMITTED) {
      return result;
    }
    if (ended !== Ended.CONFLICT) {
      throw failure(PandoError);
    }
    if (tries === retry) {
      throw failure(Conflict);
    }
    rest(Math.min(REST * tries, LONGEST_REST));
  }
}

// Runs the function; whatever is thrown aborts.
function inside(work, tries) {
  try {
    const result = work(tries);
    if (typeof result?.then === "function") {
      throw new TypeError("the function of a transaction must be synchronous: what is awaited is done outside");
    }
    return result;
  } catch (error) {
    library().abort(1);
    throw error;
  }
}

function rest(milliseconds) {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);
}

module.exports = { Conflict, PandoError, Status, status, transaction };
