// A plugin of QEMU that counts instructions by the basic block they are in. In the user-mode
// emulator these are a program's, and its system calls are counted by number. In the emulator of
// a machine they are those of everything that runs there, the kernel's included.
//
// The program marks the borders of what it measures with a nop that no compiler writes. At each
// mark the counts since the one before are written to the file given as out=FILE:
//
//	m NUMBER        a mark, counted from 0; what follows was counted before it
//	s NUMBER COUNT  system calls
//	b ADDRESS COUNT instructions in the block that begins there
//	r ADDRESS COUNT repetitions of the string instruction there, after the first
//
// Debian's package of QEMU has no header for plugins. The declarations are those of the
// interface as documented at https://www.qemu.org/docs/master/devel/tcg-plugins.html; they are
// the same in versions 1 (QEMU 4.2 to 8.2) and 2 (since 9.0).
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
typedef struct qemu_info_t qemu_info_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };

extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), enum qemu_plugin_cb_flags, void *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), enum qemu_plugin_cb_flags, void *);
extern void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned, int64_t,
	uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);

__attribute__((visibility("default"))) int qemu_plugin_version = PLUGIN_VERSION;

// nopl 0x52504342(%rax)
static const uint8_t nop[] = {0x0f, 0x1f, 0x80, 0x42, 0x43, 0x50, 0x52};

// A block is translated anew when QEMU's cache is full: the same address is the same block,
// unless its length has changed.
struct block {
	struct block *next;
	uint64_t address, length;
	int repeats; // it is one string instruction, which is a block of its own from its second repetition on
	_Atomic uint64_t runs;
};

enum { BUCKETS = 1 << 16, SYSCALLS = 1024 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; // guards the lists and the file
static struct block *blocks[BUCKETS];
static _Atomic uint64_t syscalls[SYSCALLS];
static FILE *out;

static void executed(unsigned vcpu, void *b)
{
	(void)vcpu;
	atomic_fetch_add_explicit(&((struct block *)b)->runs, 1, memory_order_relaxed);
}

static void mark(unsigned vcpu, void *unused)
{
	static uint64_t marks;

	(void)vcpu, (void)unused;
	pthread_mutex_lock(&mu);
	fprintf(out, "m %llu\n", (unsigned long long)marks++);
	for (int i = 0; i < SYSCALLS; i++) {
		uint64_t n = atomic_exchange(&syscalls[i], 0);
		if (n)
			fprintf(out, "s %d %llu\n", i, (unsigned long long)n);
	}
	for (int i = 0; i < BUCKETS; i++)
		for (struct block *b = blocks[i]; b; b = b->next) {
			uint64_t n = atomic_exchange(&b->runs, 0);
			if (n)
				fprintf(out, "%c %llu %llu\n", b->repeats ? 'r' : 'b', (unsigned long long)b->address, (unsigned long long)(n * b->length));
		}
	if (fflush(out))
		abort();
	pthread_mutex_unlock(&mu);
}

// repeats tells whether an instruction is movs, cmps, stos, lods or scas behind a prefix rep.
static int repeats(const struct qemu_plugin_insn *insn)
{
	const uint8_t *byte = qemu_plugin_insn_data(insn);
	size_t size = qemu_plugin_insn_size(insn), i = 0;
	int rep = 0;

	for (; i < size && (byte[i] == 0xf2 || byte[i] == 0xf3 || byte[i] == 0x66 || (byte[i] & 0xf0) == 0x40); i++)
		rep |= byte[i] >= 0xf2;
	return rep && i + 1 == size && ((byte[i] >= 0xa4 && byte[i] <= 0xa7) || (byte[i] >= 0xaa && byte[i] <= 0xaf));
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	uint64_t address = qemu_plugin_tb_vaddr(tb), length = qemu_plugin_tb_n_insns(tb);
	struct block **list = &blocks[(address ^ address >> 16) % BUCKETS], *b;

	(void)id;
	pthread_mutex_lock(&mu);
	for (b = *list; b && (b->address != address || b->length != length); b = b->next)
		;
	if (!b && (b = calloc(1, sizeof *b))) {
		b->address = address;
		b->length = length;
		b->repeats = length == 1 && repeats(qemu_plugin_tb_get_insn(tb, 0));
		b->next = *list;
		*list = b;
	}
	pthread_mutex_unlock(&mu);
	if (!b)
		abort();
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, QEMU_PLUGIN_CB_NO_REGS, b);
	for (size_t i = 0; i < length; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		if (qemu_plugin_insn_size(insn) == sizeof nop && !memcmp(qemu_plugin_insn_data(insn), nop, sizeof nop))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, mark, QEMU_PLUGIN_CB_NO_REGS, NULL);
	}
}

static void syscalled(qemu_plugin_id_t id, unsigned vcpu, int64_t number, uint64_t a1, uint64_t a2,
	uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
	(void)id, (void)vcpu, (void)a1, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
	if (number >= 0 && number < SYSCALLS)
		atomic_fetch_add_explicit(&syscalls[number], 1, memory_order_relaxed);
}

__attribute__((visibility("default")))
int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
	(void)info;
	if (argc != 1 || strncmp(argv[0], "out=", 4) || !(out = fopen(argv[0] + 4, "w"))) {
		fprintf(stderr, "count: out=FILE is wanted, a file that can be written\n");
		return -1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_vcpu_syscall_cb(id, syscalled);
	return 0;
}
