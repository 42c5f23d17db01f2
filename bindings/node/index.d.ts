/** A transaction could not begin, or end as it was to. */
export class PandoError extends Error {
  /** What it is about: a path, a descriptor, a flag; empty where that is nothing in particular. */
  readonly object: string;
}

/** Others have changed what the transaction has read or changed. Nothing of it is done. */
export class Conflict extends PandoError {}

/** Whether there is a transaction. */
export declare const Status: Readonly<{ NONE: 0; ACTIVE: 1; OTHER_THREAD: 2; PART: 3 }>;

export interface TransactionOptions {
  /** Its commit survives a loss of power. */
  durable?: boolean;
  /** How often it runs again where others were in the way: 0 if nothing is said. */
  retry?: number;
  /** What cannot be covered is passed over. */
  warn?: boolean;
}

/**
 * Runs a function as a transaction, and returns what it returns. The function must be synchronous, and use the
 * synchronous functions of `fs` and `child_process`: all else is done by other threads, which are outside. An exception
 * aborts. Files that are open already are not covered.
 */
export function transaction<T>(work: (tries: number) => T extends PromiseLike<unknown> ? never : T, options?: TransactionOptions): T;

/** Whether there is a transaction in this program. */
export function status(): 0 | 1 | 2 | 3;
