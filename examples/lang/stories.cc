// Several stories told at once, in turns, each a prompt state of its own that is read while it is
// written: what one thread reads, the others go on writing.
#include <thread>

#include "example.h"

namespace {
using namespace espalier::lang;

void tell(State& s, const std::string& hero) {
  s += "Once upon a time there was a " + hero + ".";
  for (int turn = 0; turn < 3; ++turn)
    s += gen("part" + std::to_string(turn), {.max_tokens = 30, .stop = "\n"}) + " Then";
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  std::vector<State> stories;
  uint64_t seed = 0;
  for (const char* hero : {"cat", "king", "small boat"})
    stories.push_back(launch(
        [=](State& s) { tell(s, hero); },
        {.backend = *backend, .defaults = {.temperature = 0.7f, .seed = ++seed}, .stream = true}));
  int worst = 0;
  for (State& story : stories) {
    try {
      for (const std::string& piece : story.stream()) std::cout << piece << std::flush;
    } catch (const Error&) {  // told below
    }
    std::cout << "\n\n";
    (void)story.sync();
    worst = std::max(worst, example::end(story));
  }
  return worst;
}
