#include "carillon/graph/signature.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "carillon/graph/bounded.h"

namespace carillon::graph {
namespace {

std::string dimension_text(std::size_t d, const Dimension& dimension) {
  return "dimension " + std::to_string(d) +
         (dimension.symbol.empty() ? "" : " ('" + dimension.symbol.substr(0, 100) + "')");
}

using Symbols = std::vector<std::pair<std::string, std::int64_t>>;

// What the options fix, and which symbols that gives an extent.
Result<> apply_option(const ImportOptions& options, Signature::Input& input, Symbols& symbols) {
  const std::string where = "input '" + input.name + "'";
  const auto option =
      std::ranges::find(options.input_shapes, input.name, &std::pair<std::string, Shape>::first);
  if (option == options.input_shapes.end()) {
    if (input.ranked) return {};
    return invalid(where + " has no shape in the file; state its dims in the model's config");
  }
  const Shape& wanted = option->second;
  if (!input.ranked) input.dimensions.resize(wanted.size());
  input.ranked = true;
  if (wanted.size() != input.dimensions.size())
    return invalid(where + " has " + std::to_string(input.dimensions.size()) +
                   " dimensions in the file, but the model's config gives " + to_text(wanted));
  for (std::size_t d = 0; d < wanted.size(); ++d) {
    Dimension& dimension = input.dimensions[d];
    if (wanted[d] == -1) continue;
    if (wanted[d] < 1)
      return invalid(where + ": extent " + std::to_string(wanted[d]) + " must be at least 1");
    if (dimension.extent >= 0 && dimension.extent != wanted[d])
      return invalid(where + ": " + dimension_text(d, dimension) + " is " + std::to_string(dimension.extent) +
                     " in the file, but the model's config says " + std::to_string(wanted[d]));
    dimension.extent = wanted[d];
    if (dimension.symbol.empty()) continue;
    const auto known = std::ranges::find(symbols, dimension.symbol, &Symbols::value_type::first);
    if (known == symbols.end())
      symbols.emplace_back(dimension.symbol, wanted[d]);
    else if (known->second != wanted[d])
      return invalid(where + ": " + dimension_text(d, dimension) + " is asked to be " +
                     std::to_string(wanted[d]) + ", but elsewhere " + std::to_string(known->second));
  }
  return {};
}

}  // namespace

// Whether the first dimension of every input is open in the file, and the same where it has a name.
bool Signature::may_batch(const std::vector<Input>& inputs) {
  const std::string* symbol = nullptr;
  return !inputs.empty() && std::ranges::all_of(inputs, [&](const Input& input) {
    if (!input.ranked || input.dimensions.empty() || input.dimensions.front().extent >= 0) return false;
    const std::string& here = input.dimensions.front().symbol;
    if (here.empty()) return true;
    if (symbol == nullptr) symbol = &here;
    return here == *symbol;
  });
}

Result<Signature> Signature::find_as_given(std::vector<Input> inputs, const ImportOptions& options,
                                           const OutputsAt& outputs_at) {
  Signature out;
  out.batched_ = options.batched;
  out.whole_ = options.whole && !options.batched;
  if (auto ok = out.find_inputs(std::move(inputs), options); !ok) return std::unexpected(ok.error());
  if (auto ok = out.find_outputs(outputs_at); !ok) return std::unexpected(ok.error());
  return out;
}

Result<Signature> Signature::find_by_file(std::vector<Input> inputs, const ImportOptions& options,
                                          const OutputsAt& outputs_at) {
  ImportOptions given = options;
  given.batched = may_batch(inputs);
  auto first = find_as_given(inputs, given, outputs_at);
  if (first || !given.batched) return first;
  given.batched = false;
  auto whole = find_as_given(std::move(inputs), given, outputs_at);
  // What is wrong is what the attempt says that the file is made for; the other fails at the inputs.
  return whole ? std::move(whole) : std::move(first);
}

Result<Signature> Signature::find(std::vector<Input> inputs, const ImportOptions& options,
                                  const OutputsAt& outputs_at, const WhyNot& why_not) {
  ImportOptions given = options;
  given.whole = false;
  auto found = options.batch_from_file ? find_by_file(inputs, given, outputs_at)
                                       : find_as_given(inputs, given, outputs_at);
  if (!found) return found;
  std::string why = found->ask(options, why_not);
  if (why.empty()) return found;
  given.batched = false;
  given.whole = !options.batch_from_file;
  if (!options.batch_from_file) {
    if (!options.whole) {
      found->unproven_ = std::move(why);
      return found;
    }
    if (!options.lengths.empty())
      return invalid(why + ", so each request runs by itself, as long as it is; leave out parameter lengths");
    given.open = true;
    make_whole(inputs, options);
  }
  auto apart = find_as_given(std::move(inputs), given, outputs_at);
  if (!apart) return in_context(why + ", so requests are not batched; without", apart.error());
  apart->unproven_ = std::move(why);
  return apart;
}

// Why it should not batch, where it would and that is wanted.
std::string Signature::ask(const ImportOptions& options, const WhyNot& why_not) const {
  constexpr std::array usual{2, 3};
  const std::span<const int> sizes =
      options.proven_at.empty() && options.batch_from_file ? std::span<const int>(usual) : options.proven_at;
  if (!batched_ || sizes.empty() || !fixed_at_one_.empty()) return {};
  return why_not ? why_not(*this, sizes) : "nothing is known of its operators";
}

// Dimension 0 of all inputs becomes one free dimension, whatever else has its name.
void Signature::make_whole(std::vector<Input>& inputs, const ImportOptions& options) {
  std::string name = "batch";
  const auto is_taken = [&] {
    return std::ranges::any_of(inputs, [&](const Input& input) {
      return std::ranges::find(input.dimensions, name, &Dimension::symbol) != input.dimensions.end();
    });
  };
  while (is_taken()) name += '_';
  for (Input& input : inputs) {
    for (const auto& [wanted, shape] : options.input_shapes)
      if (!input.ranked && wanted == input.name) input.dimensions.resize(shape.size());
    input.ranked = true;  // it was found to batch
    if (!input.dimensions.empty()) input.dimensions.front() = {.extent = -1, .symbol = name};
  }
}

Result<Signature::Question> Signature::at(std::int64_t batch, std::int64_t length) const {
  if (free_.any()) return at_extents(batch, reference_);
  if (!lengths_.empty() && length < 1)
    return invalid("length " + std::to_string(length) + " must be at least 1");
  if (auto ok = check_batch(batch); !ok) return std::unexpected(ok.error());
  Question out{.inputs = {}, .batch = batch};
  for (const TensorSpec& input : inputs_) out.inputs.push_back(input.shape_at(batch, length));
  return out;
}

Result<Signature::Question> Signature::at_extents(std::int64_t batch,
                                                  std::span<const std::int64_t> extents) const {
  if (auto ok = check_batch(batch); !ok) return std::unexpected(ok.error());
  if (auto ok = free_.check(extents); !ok) return std::unexpected(ok.error());
  Question out{.inputs = {}, .batch = batch};
  for (const TensorSpec& input : inputs_) out.inputs.push_back(input.shape_at(batch, extents));
  return out;
}

Result<> Signature::check_batch(std::int64_t batch) const {
  if (batch < 1) return invalid("batch " + std::to_string(batch) + " must be at least 1");
  if (!batched_ && batch != 1)
    return invalid("batch " + std::to_string(batch) + ": the model has no batch dimension");
  if (!fixed_at_one_.empty() && batch != 1)
    return invalid("batch " + std::to_string(batch) + ": dimension 0 of input '" + fixed_at_one_ +
                   "' is fixed at 1 in the file; export the model with a dynamic batch dimension");
  return {};
}

Result<> Signature::find_inputs(std::vector<Input> inputs, const ImportOptions& options) {
  for (const auto& [name, shape] : options.input_shapes)
    if (std::ranges::find(inputs, name, &Input::name) == inputs.end()) {
      std::string there;
      for (const Input& input : inputs) there += (there.empty() ? "'" : ", '") + input.name + "'";
      return invalid("the model has no input '" + name + "', which its config names; it has " +
                     (there.empty() ? "none" : there));
    }
  Symbols symbols;
  for (Input& input : inputs)
    if (auto ok = apply_option(options, input, symbols); !ok) return ok;
  lengths_ = options.lengths;
  for (const Input& input : inputs)
    if (auto ok = add_input(input, symbols, options.open && lengths_.empty()); !ok) return ok;
  if (!lengths_.empty() && std::ranges::none_of(inputs_, &TensorSpec::varies))
    return invalid("lengths are given, but every dimension of the inputs is fixed");
  return {};
}

Result<> Signature::add_input(const Input& input,
                              std::span<const std::pair<std::string, std::int64_t>> symbols, bool open) {
  TensorSpec spec{.name = input.name, .type = input.type};
  const std::string where = "input '" + spec.name + "'";
  if (batched_ && input.dimensions.empty())
    return invalid(where + " is a scalar and cannot have a batch dimension; set max_batch_size to 0");
  for (std::size_t d = 0; d < input.dimensions.size(); ++d) {
    const Dimension& dimension = input.dimensions[d];
    if (batched_ && d == 0) {
      if (dimension.extent > 1 || dimension.extent == 0)
        return invalid(where + ": dimension 0 is fixed at " + std::to_string(dimension.extent) +
                       ", so it is no batch dimension; set max_batch_size to 0");
      if (dimension.extent == 1) fixed_at_one_ = spec.name;
      spec.shape.push_back(batch_dimension);
      continue;
    }
    std::int64_t extent = dimension.extent;
    if (const auto found = std::ranges::find(symbols, dimension.symbol, &Symbols::value_type::first);
        extent < 0 && found != symbols.end())
      extent = found->second;
    if (extent < 0 && open) {
      const auto number =
          free_.add(dimension.symbol, where + " dimension " + std::to_string(d), d, input.dimensions.size());
      if (!number) return std::unexpected(number.error());
      if (d == 0 && whole_) free_.set_rows(*number);
      spec.shape.push_back(free_dimension(*number));
      continue;
    }
    if (extent < 0 && lengths_.empty())
      return invalid(where + ": " + dimension_text(d, dimension) +
                     " has no fixed extent; state it in the dims of the model's config, or give the extents "
                     "that it may take in the config's parameter lengths");
    if (extent < 0 && spec.varies())
      return fail(ErrorCode::unsupported,
                  where + ": " + dimension_text(d, dimension) +
                      " is the second that varies; fix one of them in the dims of the model's config");
    spec.shape.push_back(extent < 0 ? length_dimension : extent);
  }
  inputs_.push_back(std::move(spec));
  return {};
}

Result<> Signature::find_outputs(const OutputsAt& outputs_at) {
  if (free_.any())
    if (auto ok = find_reference(outputs_at); !ok) return ok;
  const std::int64_t length = lengths_.empty() ? 0 : lengths_.front();
  const auto question = at(1, length);
  if (!question) return std::unexpected(question.error());
  auto one = outputs_at(*question);
  if (!one && length > 0) return in_context("at length " + std::to_string(length), one.error());
  if (!one) return std::unexpected(one.error());
  outputs_ = std::move(*one);
  if (auto ok = free_.any() ? find_computed_outputs(outputs_at) : find_varying_outputs(length, outputs_at);
      !ok)
    return ok;
  return batched_ ? find_batched_outputs(length, outputs_at) : Result<>{};
}

// That the outputs follow the batch, by how they are at 1 and at 2.
Result<> Signature::find_batched_outputs(std::int64_t length, const OutputsAt& outputs_at) {
  std::vector<TensorSpec> other;
  if (fixed_at_one_.empty()) {
    const auto question = at(2, length);
    if (!question) return std::unexpected(question.error());
    auto two = outputs_at(*question);
    if (!two) return in_context("at batch 2", two.error());
    other = std::move(*two);
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    Shape& shape = outputs_[i].shape;
    const Shape seen = shape;
    if (has_bounded(shape))
      return invalid(
          "output '" + outputs_[i].name + "' has shape " + to_text(outputs_[i].open_shape()) +
          ", and data decide what is -1 there, for all rows at once: such a model does not batch; set "
          "max_batch_size to 0");
    bool follows = !shape.empty() && shape[0] == 1;
    if (follows) shape[0] = batch_dimension;
    if (follows && !other.empty()) {
      // What is computed may be anything, and so may how many dimensions there are.
      Shape two = outputs_[i].shape_at(2, length);
      if (two.back() == any_dimensions) {
        two.pop_back();
        two.resize(std::max(two.size(), other[i].shape.size()), computed_dimension);
      }
      follows = two.size() == other[i].shape.size();
      for (std::size_t d = 0; follows && d < two.size(); ++d)
        follows = two[d] == computed_dimension || two[d] == other[i].shape[d];
    }
    if (!follows)
      return invalid("output '" + outputs_[i].name + "' has shape " + to_text(seen) + " at batch 1" +
                     (other.empty() ? "" : " and " + to_text(other[i].shape) + " at batch 2") +
                     ": its dimension 0 (and only that) must be the batch; for a model that does not batch "
                     "set max_batch_size to 0, and state the inputs' dims where the file leaves them open");
  }
  return {};
}

// Extents at which the operators fit together, as models commonly have them.
Result<> Signature::find_reference(const OutputsAt& outputs_at) {
  std::optional<Error> first;
  for (const Extents& extents : free_.guesses()) {
    auto question = at_extents(1, extents);
    if (!question) return std::unexpected(question.error());
    question->trial = true;
    const auto outputs = outputs_at(*question);
    if (outputs) {
      reference_ = extents;
      return {};
    }
    // What no extents would help with.
    if (outputs.error().code == ErrorCode::resource_exhausted) return std::unexpected(outputs.error());
    if (!first) first = in_context("at " + free_.text(extents), outputs.error()).error();
  }
  return std::unexpected(*first);
}

// Marks the dimensions of outputs that change with the extents; the outputs are those at the reference.
Result<> Signature::find_computed_outputs(const OutputsAt& outputs_at) {
  bool any = false;
  std::vector<Shape> seen;
  for (const TensorSpec& output : outputs_) seen.push_back(output.shape);
  for (const Extents& extents : free_.others(reference_)) {
    auto question = at_extents(1, extents);
    if (!question) continue;
    question->trial = true;
    const auto outputs = outputs_at(*question);
    if (!outputs) continue;
    any = true;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const Shape& other = (*outputs)[i].shape;
      Shape& shape = outputs_[i].shape;
      if (shape == any_open_rank()) continue;
      const bool by_data = has_open_rank(other) || has_open_rank(seen[i]);
      if (by_data || (other.size() != seen[i].size() && (has_bounded(other) || has_bounded(seen[i])))) {
        if (other != seen[i]) shape = any_open_rank();
        continue;
      }
      if (!shape.empty() && shape.back() == any_dimensions) continue;
      if (other.size() != seen[i].size()) {
        // The batch stays in front.
        shape.resize(batched_ ? std::min<std::size_t>(1, shape.size()) : 0);
        shape.push_back(any_dimensions);
        continue;
      }
      for (std::size_t d = 0; d < other.size(); ++d)
        if (other[d] != seen[i][d] && shape[d] != any_bounded_dimension)
          shape[d] =
              is_bounded(other[d]) || is_bounded(seen[i][d]) ? any_bounded_dimension : computed_dimension;
    }
  }
  // Then nobody knows what changes.
  if (!any)
    for (TensorSpec& output : outputs_)
      for (std::size_t d = batched_ ? 1 : 0; d < output.shape.size(); ++d)
        output.shape[d] = computed_dimension;
  return {};
}

// Marks the dimensions of outputs that follow the length; the outputs are those at `length`.
Result<> Signature::find_varying_outputs(std::int64_t length, const OutputsAt& outputs_at) {
  if (lengths_.empty()) return {};
  const auto outputs_of = [&](std::int64_t other) -> Result<std::vector<TensorSpec>> {
    auto question = at(1, other);
    if (!question) return std::unexpected(question.error());
    question->trial = true;
    return outputs_at(*question);
  };
  std::int64_t another = lengths_.size() > 1 ? lengths_.back() : 2 * length;
  auto outputs = outputs_of(another);
  if (!outputs && lengths_.size() == 1 && length > 1) {
    // Nobody asked for either: the one may be too long, the other no multiple of what the model wants.
    another = length - 1;
    outputs = outputs_of(another);
    if (!outputs) return {};  // then nothing is seen to vary
  }
  if (!outputs) return in_context("at length " + std::to_string(another), outputs.error());
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    Shape& shape = outputs_[i].shape;
    const Shape seen = shape;
    const Shape& other = (*outputs)[i].shape;
    bool follows = seen.size() == other.size();
    int varying = 0;
    for (std::size_t d = 0; follows && d < seen.size(); ++d) {
      if (seen[d] == other[d]) continue;
      follows = seen[d] == length && other[d] == another && ++varying == 1;
      shape[d] = length_dimension;
    }
    if (!follows)
      return fail(ErrorCode::unsupported, "output '" + outputs_[i].name + "' has shape " + to_text(seen) +
                                              " at length " + std::to_string(length) + " and " +
                                              to_text(other) + " at length " + std::to_string(another) +
                                              ": at most one dimension may vary, and it must be the length");
  }
  return {};
}

}  // namespace carillon::graph
