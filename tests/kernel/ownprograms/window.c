/* A sliding window of ten slots of 100 ms. Reads a number from each line of stdin and asks that often; says itself, a line each, what was decided.
 * -DLIBRARY: the limiter alone; -DPROGRAM: without it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOTS 10
#define SLOT_NS 100000000LL

struct limits {
	int32_t most;
	double per_s;
};

struct window {
	int64_t sum;
	struct limits *limits;
	int64_t slot[SLOTS];
	int64_t counts[SLOTS];
};

#ifdef PROGRAM
int window_inc_now(struct window *w, const char *key, int cost, int *left);
#else
static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* 1 allowed, 0 refused, -1 no key; *left is what is left. */
__attribute__((noinline, noclone)) int window_inc(struct window *w, const char *key, int cost, int64_t now, int *left)
{
	int64_t slot = now / SLOT_NS, sum = 0;
	if (!*key)
		return -1;
	for (int i = 0; i < SLOTS; i++)
		if (w->slot[i] > slot - SLOTS)
			sum += w->counts[i];
	w->sum = sum;
	if (sum + cost > w->limits->most) {
		*left = w->limits->most - sum;
		return 0;
	}
	if (w->slot[slot % SLOTS] != slot) {
		w->slot[slot % SLOTS] = slot;
		w->counts[slot % SLOTS] = 0;
	}
	w->counts[slot % SLOTS] += cost;
	w->sum = sum + cost;
	*left = w->limits->most - w->sum;
	return 1;
}

/* Ends by a jump to the other. */
__attribute__((noinline, noclone)) int window_inc_now(struct window *w, const char *key, int cost, int *left)
{
	return window_inc(w, key, cost, now_ns(), left);
}

#endif

#ifndef LIBRARY
int main(void)
{
	char line[64], key[64];
	struct window *w = calloc(1, sizeof(*w));
	w->limits = malloc(sizeof(*w->limits));
	w->limits->most = 7;
	w->limits->per_s = 7.0;
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		for (int i = 0, n = atoi(line); i < n; i++) {
			int cost = 1 + i % 2, left = 0, result;
			snprintf(key, sizeof(key), i % 5 ? "customer %d" : "", i % 3);
			result = window_inc_now(w, key, cost, &left);
			printf("%s %d %s\n", result == 1 ? "allowed" : result ? "error" : "refused", cost, key);
		}
		printf("done\n");
		fflush(stdout);
	}
	return 0;
}
#endif
