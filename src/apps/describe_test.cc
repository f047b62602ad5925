#include "apps/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/command_line.h"

namespace espalier::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool did_run = false;

int run_paint(const std::vector<std::string>& args) {
  std::string colour = "red";
  std::filesystem::path file;
  bool twice = false;
  SettingTable table, none;
  table.group("Paint");
  table.choice("colour", colour, {"red", "green"}, "of the paint, [dry]: it's");
  table.path("wall", file, "what is painted");
  table.toggle("twice", twice, "a second coat");
  CommandLine command{"tool paint", "Paints a wall.", "Example:\n  tool paint .x", "WALL", {}};
  if (const auto exit_code = parse_command_line(command, table, none, args)) return *exit_code;
  did_run = true;
  return kExitOk;
}

CommandDescription tool() {
  static const std::vector<Command> inner = {{"paint", "paint a wall", run_paint}};
  return describe("tool", "paint things",
                  {{"paint", "paint a wall", run_paint}, {"all", "much more", run_paint, inner}});
}

TEST(Describe, ACommandsTableIsReadWithoutRunningIt) {
  did_run = false;
  const CommandDescription described = tool();
  EXPECT_FALSE(did_run);
  EXPECT_FALSE(being_described());
  ASSERT_EQ(described.inner.size(), 2u);
  const CommandDescription& paint = described.inner[0];
  EXPECT_EQ(paint.name, "tool paint");
  EXPECT_EQ(paint.positional, "WALL");
  ASSERT_EQ(paint.flags.size(), 4u);  // and --config
  EXPECT_THAT(paint.flags[0].choices(), ElementsAre("red", "green"));
  EXPECT_EQ(paint.flags[0].group, "Paint");
  EXPECT_TRUE(paint.flags[1].is_path());
  EXPECT_TRUE(paint.flags[2].value_name.empty());
  EXPECT_EQ(described.inner[1].inner.at(0).name, "tool all paint");
}

TEST(Describe, ScriptsHoldEveryCommandAndFlag) {
  const CommandDescription described = tool();
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto script = completion_script(described, shell);
    ASSERT_TRUE(script) << shell;
    for (const char* word : {"paint", "colour", "wall", "twice", "config", "all"})
      EXPECT_THAT(*script, HasSubstr(word)) << shell;
  }
  EXPECT_THAT(*completion_script(described, "zsh"),
              HasSubstr(R"([of the paint, \[dry\]\: it'\''s])"));
  EXPECT_THAT(*completion_script(described, "bash"),
              HasSubstr("'tool paint --colour') values='red green'"));
  EXPECT_FALSE(completion_script(described, "csh"));
}

TEST(Describe, PagesStateEverySetting) {
  const std::vector<ManualPage> pages = manual_pages(tool(), "1.2");
  ASSERT_EQ(pages.size(), 4u);
  EXPECT_EQ(pages[0].file_name, "tool.1");
  EXPECT_EQ(pages[1].file_name, "tool-paint.1");
  EXPECT_EQ(pages[3].file_name, "tool-all-paint.1");
  EXPECT_THAT(pages[1].text, HasSubstr("\\fB\\-\\-colour\\fR \\fIred|\\:green\\fR"));
  EXPECT_THAT(pages[1].text, HasSubstr("[red]"));
  EXPECT_THAT(pages[1].text, HasSubstr("ESPALIER_COLOUR"));
  EXPECT_THAT(pages[0].text, HasSubstr("tool\\-paint"));
}

}  // namespace
}  // namespace espalier::apps
