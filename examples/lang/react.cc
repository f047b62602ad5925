// ReAct: the model chooses an action, the program does it and writes down what came of it. Two
// tools: a calculator and a search in a few local notes.
#include <sstream>

#include "example.h"

namespace {
using namespace espalier::lang;

const std::vector<std::string> notes = {
    "The harbor was built in 1911.",
    "The lighthouse is 42 meters high.",
    "Maria Keller keeps the lighthouse.",
};

// The note that shares most words with the query.
std::string search(const std::string& query) {
  std::string best = "Nothing was found.";
  int most = 0;
  for (const std::string& note : notes) {
    int shared = 0;
    std::istringstream words(query);
    for (std::string word; words >> word;) shared += note.find(word) != std::string::npos ? 1 : 0;
    if (shared > most) most = shared, best = note;
  }
  return best;
}

// "a + b", "a - b", "a * b".
std::string calculate(const std::string& text) {
  std::istringstream in(text);
  long a = 0, b = 0;
  char op = 0;
  if (!(in >> a >> op >> b)) return "That is no calculation.";
  return std::to_string(op == '+' ? a + b : op == '-' ? a - b : a * b);
}

void react(State& s, const std::string& question) {
  s += "Answer with the help of two tools: Search[words] and Calculate[a + b].\n";
  s += "Question: How high are two lighthouses?\nAction 1: Search[lighthouse high]\n";
  s += "Observation 1: The lighthouse is 42 meters high.\nAction 2: Calculate[42 * 2]\n";
  s += "Observation 2: 84\nAction 3: Finish[84]\n\n";
  s += "Question: " + question + "\n";
  for (int i = 1; i <= 4; ++i) {
    const std::string n = std::to_string(i);
    s += "Action " + n + ": " + select("tool" + n, {"Search", "Calculate", "Finish"}) + "[";
    const bool calculates = s["tool" + n] == "Calculate";
    s += gen("input" + n,
             {.max_tokens = 16,
              .temperature = 0,
              .regex = calculates ? R"([0-9]{1,3} [-+*] [0-9]{1,3})" : R"([A-Za-z0-9 ]{1,30})"}) +
         "]\n";
    if (s["tool" + n] == "Finish") {
      s.set_var("answer", s["input" + n]);
      return;
    }
    s += "Observation " + n + ": " +
         (calculates ? calculate(s["input" + n]) : search(s["input" + n])) + "\n";
  }
  s.set_var("answer", "no answer in four steps");
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  const State state = run(react, {.backend = *backend}, "When was the harbor built?");
  if (state.has("answer")) std::cout << state.text() << "\nanswer: " << state["answer"] << "\n";
  return example::end(state);
}
