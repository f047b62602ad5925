#include "router/model_index.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace espalier::router {
namespace {

using Names = std::vector<std::string>;

TEST(ModelIndex, NamesOfAdaptersAreRead) {
  ModelIndex index;
  index.insert(3, Names{"base", "poet", "org:chat"}, Names{"poet"});
  const auto read = [&](std::string_view model, std::string_view adapter = "") {
    const ModelName name = index.read(model, adapter);
    return fmt::format("{}+{}", name.model, name.adapter);
  };
  EXPECT_EQ(read("base"), "base+");
  EXPECT_EQ(read("poet"), "poet+poet");
  EXPECT_EQ(read("base:poet"), "base+poet");
  EXPECT_EQ(read("org:chat"), "org:chat+") << "it is a model's whole name";
  EXPECT_EQ(read("org:chat:poet"), "org:chat+poet");
  EXPECT_EQ(read("base:painter"), "base:painter+");
  EXPECT_EQ(read("base", "painter"), "base+painter");
  EXPECT_EQ(read(""), "+");
  EXPECT_EQ(index.workers_of("base:poet"), nullptr);
  index.erase(3, Names{"base", "poet", "org:chat"}, Names{"poet"});
  EXPECT_EQ(read("base:poet"), "base:poet+");
  EXPECT_EQ(index.size(), 0u);
}

// Lists of drawn names come and go; who lists a name is what a scan of the lists says.
TEST(ModelIndex, AgreesWithAScan) {
  const uint64_t seed = 24;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  ModelIndex index;
  std::map<WorkerSlot, std::pair<Names, Names>> lists;
  for (int i = 0; i < 3000; ++i) {
    const auto slot = static_cast<WorkerSlot>(rng.below(6));
    if (const auto known = lists.find(slot); known != lists.end()) {
      index.erase(slot, known->second.first, known->second.second);
      lists.erase(known);
    } else {
      auto& [models, adapters] = lists[slot];
      std::set<std::string> drawn;
      for (uint64_t n = rng.below(5); n > 0; --n) drawn.insert(fmt::format("m{}", rng.below(8)));
      models.assign(drawn.begin(), drawn.end());
      for (const std::string& name : models)
        if (rng.below(2) == 0) adapters.push_back(name);
      index.insert(slot, models, adapters);
    }
    for (int name = 0; name < 8; ++name) {
      const std::string text = fmt::format("m{}", name);
      std::set<WorkerSlot> expected, found;
      bool is_adapter = false;
      for (const auto& [s, list] : lists) {
        if (std::ranges::find(list.first, text) != list.first.end()) expected.insert(s);
        is_adapter |= std::ranges::find(list.second, text) != list.second.end();
      }
      if (const WorkerSet* const workers = index.workers_of(text))
        workers->for_each([&](WorkerSlot s) { found.insert(s); });
      ASSERT_EQ(found, expected);
      ASSERT_EQ(index.is_adapter(text), is_adapter);
    }
  }
}

}  // namespace
}  // namespace espalier::router
