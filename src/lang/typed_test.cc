#include "lang/typed.h"

#include <gtest/gtest.h>

#include "lang/test_backend.h"

namespace espalier::lang {
namespace {

struct Pet {
  std::string name;
  std::optional<int> age;
};
ESPALIER_FIELDS(Pet, name, age)

struct Person {
  std::string name;
  int age = 0;
  double height = 0;
  bool is_here = false;
  std::vector<Pet> pets;
};
ESPALIER_FIELDS(Person, name, age, height, is_here, pets)

TEST(Typed, ASchemaIsMadeFromAStruct) {
  EXPECT_EQ(SchemaOf<Pet>::get(),
            R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},)"
            R"("required":["name"],"additionalProperties":false})");
  EXPECT_NE(SchemaOf<Person>::get().find(R"("pets":{"type":"array","items":{"type":"object")"),
            std::string::npos);
}

TEST(Typed, AStructIsReadFromItsJson) {
  const auto person = parse_as<Person>(
      R"({"name":"Ann","age":34,"height":1.7,"is_here":true,"pets":[{"name":"Rex"},)"
      R"({"name":"Tom","age":3}]})");
  ASSERT_TRUE(person) << person.error().to_string();
  EXPECT_EQ(person->name, "Ann");
  EXPECT_EQ(person->age, 34);
  ASSERT_EQ(person->pets.size(), 2u);
  EXPECT_FALSE(person->pets[0].age);
  EXPECT_EQ(person->pets[1].age, 3);
}

TEST(Typed, ErrorsNameWhereAValueDoesNotFit) {
  const auto message = [](const char* text) { return parse_as<Person>(text).error().message(); };
  EXPECT_EQ(message(R"({"name":1})"), "value.name must be a string, but it is 1");
  EXPECT_EQ(message(R"({"name":"a"})"), "value.age is missing");
  EXPECT_EQ(message(R"({"name":"a","age":5000000000})"),
            "value.age is 5000000000, which is too large for its type");
  EXPECT_EQ(message(R"({"name":"a","age":1,"height":2,"is_here":false,"pets":[{"name":"b"},{}]})"),
            "value.pets[1].name is missing");
  EXPECT_NE(message("{").find("no JSON"), std::string::npos);
}

TEST(Typed, NumbersAndTruthValues) {
  EXPECT_EQ(parse_as<int>("+34").value(), 34);
  EXPECT_EQ(parse_as<bool>("True").value(), true);
  EXPECT_DOUBLE_EQ(parse_as<double>("-1.5").value(), -1.5);
  EXPECT_FALSE(parse_as<int>("34 years"));
  EXPECT_FALSE(parse_as<int8_t>("300"));
  EXPECT_FALSE(parse_as<bool>("maybe"));
}

TEST(Typed, AGenIsConstrainedToItsType) {
  const TestBackend made = make_test_backend();
  const State s = run(
      [](State& p) {
        p += "x" + gen<bool>("yes", {.max_tokens = 8}) + gen<int>("n", {.max_tokens = 3});
      },
      {.backend = made.backend});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_EQ(s.get<bool>("yes"), s["yes"] == "True");
  EXPECT_EQ(s.get<int>("n"), std::stoi(s["n"].str()));
  EXPECT_THROW((void)s.get<Person>("n"), Error);
}

}  // namespace
}  // namespace espalier::lang
