#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <tuple>

#include "fmt/core.h"

namespace espalier {
namespace {

int read_topology(int cpu, const char* what) {
  std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", cpu, what));
  int value = 0;
  return file >> value ? value : 0;
}

}  // namespace

void set_thread_name(std::string_view name) {
  pthread_setname_np(pthread_self(), std::string(name.substr(0, 15)).c_str());
}

// On Linux a nice value is a thread's own. Where the system refuses nothing is lost.
void give_way() {
  constexpr int kNice = 5;
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
}

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  // One thread of each core first, package by package, then the cores' second threads: sort by
  // (how many siblings came before, package, number).
  std::map<std::pair<int, int>, int> siblings_seen;
  std::map<int, std::tuple<int, int, int>> rank;
  for (int cpu : cpus) {
    const int package = read_topology(cpu, "physical_package_id");
    const int core = read_topology(cpu, "core_id");
    rank[cpu] = {siblings_seen[{package, core}]++, package, cpu};
  }
  std::sort(cpus.begin(), cpus.end(), [&](int a, int b) { return rank[a] < rank[b]; });
  return cpus;
}

bool pin_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

}  // namespace espalier
