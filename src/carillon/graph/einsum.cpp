#include "carillon/graph/einsum.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace carillon::graph {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

constexpr std::string_view dots = "...";

// The labels of one operand or of the result, in order: letters, and numbers below 64 for the dimensions of
// an ellipsis, counted from its end, as they broadcast.
struct Term {
  std::array<char, Einsum::most_labels> labels{};
  int count = 0;
  int dotted = -1;  // where the ellipsis stands among the letters; -1: there is none
};

class EquationReader {
 public:
  EquationReader(const Node& node, std::span<const TensorType* const> types)
      : node_(node), types_(types), text_(node.text("equation", "")) {}

  Result<Einsum> read() {
    std::size_t operands = 0;
    while (operands < types_.size() && types_[operands] != nullptr) ++operands;
    if (operands < 1 || operands > 2)
      return fail(ErrorCode::unsupported,
                  name() + "it has " + std::to_string(operands) + " operands; supported are one and two");
    std::array<Term, 2> terms;
    for (std::size_t i = 0; i < operands; ++i) {
      if (auto ok = read_term(terms[i]); !ok) return std::unexpected(ok.error());
      const bool last = i + 1 == operands;
      if (!last && !take(",")) return error("has fewer operands than the node");
      if (last && !text_.empty() && !text_.starts_with("->"))
        return error("is not an equation for its operands");
      if (auto ok = spread(terms[i], types_[i]->shape); !ok) return std::unexpected(ok.error());
    }
    Term result;
    if (take("->")) {
      if (auto ok = read_term(result); !ok) return std::unexpected(ok.error());
      if (!text_.empty()) return error("does not end after its result");
      if (auto ok = place_dots(result, result.dotted < 0 ? 0 : ellipsis_); !ok)
        return std::unexpected(ok.error());
    } else if (auto ok = imply(std::span(terms).first(operands), result); !ok) {
      return std::unexpected(ok.error());
    }
    return lay_out(std::span(terms).first(operands), result);
  }

 private:
  std::string name() const { return "node '" + node_.name + "' (Einsum): "; }
  std::unexpected<Error> error(std::string_view what) const {
    return invalid(name() + "its equation '" + std::string(node_.text("equation", "").substr(0, 100)) + "' " +
                   std::string(what));
  }

  void skip_spaces() {
    while (text_.starts_with(' ')) text_.remove_prefix(1);
  }
  bool take(std::string_view what) {
    skip_spaces();
    if (!text_.starts_with(what)) return false;
    text_.remove_prefix(what.size());
    return true;
  }

  Result<> read_term(Term& term) {
    for (skip_spaces(); !text_.empty(); skip_spaces()) {
      if (term.dotted < 0 && take(dots)) {
        term.dotted = term.count;
      } else if (is_letter(text_.front())) {
        if (auto ok = add(term, text_.front()); !ok) return ok;
        text_.remove_prefix(1);
      } else {
        return {};
      }
    }
    return {};
  }
  Result<> add(Term& term, char label) const {
    if (term.count == Einsum::most_labels)
      return error("has more than " + std::to_string(Einsum::most_labels) + " labels in one term");
    term.labels[static_cast<std::size_t>(term.count++)] = label;
    return {};
  }

  // Gives an operand's ellipsis its dimensions.
  Result<> spread(Term& term, const Shape& shape) {
    const int rank = static_cast<int>(std::min<std::size_t>(shape.size(), 64));
    if (term.dotted < 0 ? rank != term.count : rank < term.count)
      return error("does not fit an operand of shape " + to_text(shape));
    const int dimensions = rank - term.count;
    ellipsis_ = std::max(ellipsis_, dimensions);
    return place_dots(term, dimensions);
  }
  Result<> place_dots(Term& term, int dimensions) const {
    Term whole;
    for (int i = 0; i <= term.count; ++i) {
      if (i == std::max(term.dotted, 0))
        for (int d = dimensions; d-- > 0;)
          if (auto ok = add(whole, static_cast<char>(d)); !ok) return ok;
      if (i < term.count)
        if (auto ok = add(whole, term.labels[static_cast<std::size_t>(i)]); !ok) return ok;
    }
    term = whole;
    return {};
  }

  // Without an arrow: the ellipsis, then the letters that stand once, in the order of the alphabet.
  Result<> imply(std::span<const Term> terms, Term& result) const {
    for (int d = ellipsis_; d-- > 0;)
      if (auto ok = add(result, static_cast<char>(d)); !ok) return ok;
    for (int c = 'A'; c <= 'z'; ++c) {
      std::ptrdiff_t times = 0;
      for (const Term& term : terms)
        times += std::count(term.labels.begin(), term.labels.begin() + term.count, static_cast<char>(c));
      if (times == 1)
        if (auto ok = add(result, static_cast<char>(c)); !ok) return ok;
    }
    return {};
  }

  Result<Einsum> lay_out(std::span<const Term> terms, const Term& result) const {
    Einsum out;
    std::array<char, Einsum::most_labels> known{};
    const auto find = [&](char label) {
      return static_cast<int>(std::find(known.begin(), known.begin() + out.count, label) - known.begin());
    };
    const auto add_label = [&](char label) {
      if (out.count == Einsum::most_labels) return false;
      known[static_cast<std::size_t>(out.count++)] = label;
      return true;
    };
    for (int i = 0; i < result.count; ++i) {
      const char label = result.labels[static_cast<std::size_t>(i)];
      if (find(label) < out.count) return error("names a label of its result twice");
      add_label(label);
    }
    out.kept = out.count;
    std::array<bool, Einsum::most_labels> seen{};
    for (std::size_t t = 0; t < terms.size(); ++t) {
      const Shape& shape = types_[t]->shape;
      std::int64_t step = 1;
      for (int i = terms[t].count; i-- > 0;) {
        const char name = terms[t].labels[static_cast<std::size_t>(i)];
        int at = find(name);
        if (at == out.count && !add_label(name))
          return error("has more than " + std::to_string(Einsum::most_labels) + " labels");
        const std::int64_t extent = shape[static_cast<std::size_t>(i)];
        Einsum::Label& label = out.labels[static_cast<std::size_t>(at)];
        auto& known_extent = label.extent;
        if (known_extent == 1 || !seen[static_cast<std::size_t>(at)])
          known_extent = extent;
        else if (extent != 1 && extent != known_extent)
          return error("gives one label the extents " + std::to_string(known_extent) + " and " +
                       std::to_string(extent));
        seen[static_cast<std::size_t>(at)] = true;
        // A label that an operand has twice walks its diagonal.
        if (extent != 1) label.stride[t] += step;
        step *= extent;
      }
    }
    for (int i = 0; i < out.kept; ++i)
      if (!seen[static_cast<std::size_t>(i)]) return error("has a label in its result that no operand has");
    return out;
  }

  const Node& node_;
  std::span<const TensorType* const> types_;
  std::string_view text_;
  int ellipsis_ = 0;
};

}  // namespace

Shape Einsum::result() const {
  Shape shape;
  for (int i = 0; i < kept; ++i) shape.push_back(labels[static_cast<std::size_t>(i)].extent);
  return shape;
}

Result<Einsum> einsum_of(const Node& node, std::span<const TensorType* const> types) {
  return EquationReader(node, types).read();
}

}  // namespace carillon::graph
