// TfIdfVectorizer: how often n-grams of a list are in a text, whose words are
// numbers, or texts, which are numbers here.

#include <algorithm>

#include "carillon/graph/plain/family.h"
#include "carillon/graph/plain/loops.h"
#include "carillon/graph/plain/number.h"

namespace carillon::graph::plain {
namespace {

// Inference has checked the attributes.
Result<> tf_idf(const Node& node, Inputs inputs, Outputs outputs) {
  const Shape& shape = inputs[0].type->shape;
  const std::int64_t words = shape.back(), texts = shape.size() == 2 ? shape[0] : 1;
  const std::int64_t columns = outputs[0].type->shape.back();
  const auto pool = node.integers("pool_int64s"), counts = node.integers("ngram_counts"),
             indexes = node.integers("ngram_indexes");
  const auto weights = node.reals("weights");
  const std::string_view mode = node.text("mode", "");
  const std::int64_t least = node.integer("min_gram_length", 1), most = node.integer("max_gram_length", 1);
  const std::int64_t skips = node.integer("max_skip_count", 0);
  float* y = outputs[0].as<float>();
  std::fill_n(y, texts * columns, 0.0F);

  // Where the words of a text that `gram` is made of are found, so many apart.
  const auto found = [&](std::int64_t text, std::span<const std::int64_t> gram, std::int64_t apart) {
    const auto n = static_cast<std::int64_t>(gram.size());
    std::int64_t times = 0;
    for (std::int64_t i = 0; i + (n - 1) * apart < words; ++i) {
      bool same = true;
      for (std::int64_t k = 0; same && k < n; ++k)
        same = index_at(inputs[0], text * words + i + k * apart) == gram[static_cast<std::size_t>(k)];
      times += same ? 1 : 0;
    }
    return times;
  };
  std::size_t gram = 0;  // over all lengths
  for (std::size_t n = 1; n <= counts.size(); ++n) {
    const auto first = static_cast<std::size_t>(counts[n - 1]);
    const std::size_t last = n < counts.size() ? static_cast<std::size_t>(counts[n]) : pool.size();
    const auto length = static_cast<std::int64_t>(n);
    for (std::size_t at = first; at < last; at += n, ++gram) {
      if (length < least || length > most) continue;
      // What is farther apart than the text is long is not there.
      const std::int64_t farthest = n == 1 ? 1 : std::min(skips, std::max<std::int64_t>(words, 1) - 1) + 1;
      for (std::int64_t text = 0; text < texts; ++text) {
        std::int64_t times = 0;
        for (std::int64_t apart = 1; apart <= farthest; ++apart)
          times += found(text, pool.subspan(at, n), apart);
        if (times == 0) continue;
        const float weight = weights.empty() ? 1 : weights[gram];
        float& to = y[text * columns + indexes[gram]];
        to += mode == "TF"    ? static_cast<float>(times)
              : mode == "IDF" ? weight
                              : static_cast<float>(times) * weight;
      }
    }
  }
  return {};
}
PlainKernel find_tf_idf(const Node&, InputTypes types) {
  const TensorType* words = type_at(types, 0);
  return words != nullptr && (is_index(words->type) || words->type == DataType::string) ? &tf_idf : nullptr;
}

constexpr Operator operators[] = {{"TfIdfVectorizer", &find_tf_idf}};

}  // namespace

std::span<const Operator> word_operators() {
  return operators;
}

}  // namespace carillon::graph::plain
