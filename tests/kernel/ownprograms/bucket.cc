// A token bucket that throws where it is asked for too much, and one that is a template. Reads a number from each line of stdin; says itself what was decided.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace shop {

enum class Answer : uint8_t { refused, allowed, late };

struct Settings {
	double per_s = 5.5;
	long burst = 3;
};

class Bucket {
public:
	Answer take(const std::string &key, unsigned cost);
	long tokens = 3;
	Settings settings;
};

__attribute__((noinline)) static void check(unsigned cost)
{
	if (cost > 3)
		throw std::runtime_error("more than the burst");
}

__attribute__((noinline, noclone)) Answer Bucket::take(const std::string &key, unsigned cost)
{
	check(cost);
	if (key.size() > 40)
		return Answer::late;
	if (tokens < (long)cost)
		return Answer::refused;
	tokens -= cost;
	return Answer::allowed;
}

template <typename T> class Gate {
public:
	__attribute__((noinline, noclone)) bool pass(T id, T *left);
	T count = 0;
};

template <typename T> bool Gate<T>::pass(T id, T *left)
{
	count = (count * 7 + id) % 11;
	*left = 11 - count;
	return count < 6;
}

template class Gate<int>;
template class Gate<long>;

} // namespace shop

int main()
{
	static const char *const names[] = {"refused", "allowed", "delayed"};
	char line[64];
	shop::Bucket bucket;
	shop::Gate<long> gate;
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		for (int i = 0, n = atoi(line); i < n; i++) {
			std::string key = i % 7 == 3 ? std::string(50, 'x') : "user " + std::to_string(i % 3);
			unsigned cost = i % 5 == 4 ? 9 : 1;
			long left;
			bucket.tokens += i % 2;
			try {
				printf("%s %u %s\n", names[(int)bucket.take(key, cost)], cost, key.c_str());
			} catch (const std::exception &) {
				printf("thrown %u %s\n", cost, key.c_str());
			}
			printf("gate %s %d\n", names[gate.pass(i, &left)], i);
		}
		printf("done\n");
		fflush(stdout);
	}
	return 0;
}
