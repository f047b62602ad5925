// Extraction held to a form: JSON of a struct's schema, a regular expression, a number.
#include "example.h"

namespace {
using namespace espalier::lang;

struct Person {
  std::string name;
  int age = 0;
};
ESPALIER_FIELDS(Person, name, age)

void extract(State& s, const std::string& sentence) {
  s += user("Extract name, age as JSON: " + sentence);
  auto forks = s.fork(2);
  forks[0] += assistant(gen<Person>("person", {.max_tokens = 48, .temperature = 0}));
  forks[1] += assistant(
      "{\"name\": \"" +
      gen("name", {.max_tokens = 12, .temperature = 0, .regex = "[A-Z][a-z]+ [A-Z][a-z]+"}) +
      "\", \"age\": " + gen<int>("age", {.max_tokens = 3, .temperature = 0}));
  const Person person = forks[0].get<Person>("person");
  std::cout << "as JSON:  " << person.name << ", " << person.age << "\n";
  std::cout << "by regex: " << forks[1]["name"] << ", " << forks[1].get<int>("age") << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  return example::end(run(extract, {.backend = *backend}, "Maria Keller is 34 years old."));
}
