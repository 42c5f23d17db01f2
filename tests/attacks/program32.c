/* A 32-bit program without a C library: says so, and ends; with an argument it stays. */
static int call(int number, int a, int b, int c) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}

/* The number of arguments is where the stack begins. */
__asm__(".globl _start\n_start: push (%esp)\n call begin");

void begin(int count) {
    static const char words[] = "of 32 bits\n";
    call(4, 1, (int)words, sizeof words - 1);
    while (count > 1)
        call(29, 0, 0, 0);
    call(1, 0, 0, 0);
    for (;;) {
    }
}
