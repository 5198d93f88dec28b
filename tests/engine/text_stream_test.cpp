// Stop strings across token borders, and characters across token borders.
#include "rarefy/engine/text_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "rarefy/base/check.h"

namespace rarefy::engine {
namespace {

std::string all(TextStream& stream, const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) out += stream.push(piece);
  return out + stream.finish();
}

TEST(TextStream, PassesTextThrough) {
  TextStream stream;
  EXPECT_EQ(stream.push("abc"), "abc");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, CutsBeforeAStopStringThatSpansTokens) {
  TextStream stream({"END"});
  EXPECT_EQ(stream.push("one E"), "one ");
  EXPECT_EQ(stream.push("N"), "");
  EXPECT_EQ(stream.push("D two"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.push("more"), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, ReleasesTextThatDidNotBecomeAStopString) {
  TextStream stream({"END"});
  EXPECT_EQ(stream.push("EN"), "");
  EXPECT_EQ(stream.push("TRY"), "ENTRY");
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, EarliestOfOverlappingStopsWins) {
  TextStream a({"bcd", "abc"});
  EXPECT_EQ(all(a, {"xab", "cd"}), "x");
  TextStream b({" stop", "top"});
  EXPECT_EQ(all(b, {"full", " st", "op"}), "full");
}

TEST(TextStream, UnfinishedStopAppearsAtTheEnd) {
  TextStream stream({"\n\n"});
  EXPECT_EQ(all(stream, {"line\n"}), "line\n");
}

TEST(TextStream, RefusesAnEmptyStopString) {
  try {
    TextStream stream({"a", ""});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.id(), "E_STOP_EMPTY");
  }
}

TEST(TextStream, CharactersOfSeveralBytesComeWhole) {
  TextStream stream;
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("\x98\x80!\xC3"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

RC_GTEST_PROP(TextStream, EqualsCuttingTheWholeText, ()) {
  const auto letter = rc::gen::elementOf(std::string("ab"));
  const auto pieces = *rc::gen::container<std::vector<std::string>>(rc::gen::container<std::string>(letter));
  const auto stops =
      *rc::gen::container<std::vector<std::string>>(rc::gen::nonEmpty(rc::gen::container<std::string>(letter)));
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  std::size_t cut = text.size();
  for (const std::string& stop : stops) cut = std::min(cut, text.find(stop));
  TextStream stream(stops);
  const std::string out = all(stream, pieces);
  RC_ASSERT(out == text.substr(0, cut));
}

}  // namespace
}  // namespace rarefy::engine
