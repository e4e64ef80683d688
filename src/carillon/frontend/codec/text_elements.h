#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/controller/calls/service.h"
#include "carillon/frontend/codec/infer_request.h"
#include "carillon/graph/known_texts.h"
#include "carillon/repository/config.h"

namespace carillon::frontend {

// Tensors of BYTES as the protocols have them: elements row-major, each its length in four bytes, the least
// first, and so many bytes. Inside the server an element is a handle (graph::KnownTexts).

inline constexpr std::size_t most_spelt = std::size_t{256} << 20;  // bytes of an answer's texts

void append_element(std::vector<std::byte>& out, std::string_view text);
// What append_element() wrote, which they refer to.
std::vector<std::string_view> text_elements(std::span<const std::byte> bytes);

void put_handle(std::vector<std::byte>& out, graph::TextHandle handle);

// Where texts that no model names are kept for the answer; null where no output of the model is text, so that
// nobody will ask for them.
std::vector<std::byte>* own_texts(const repository::ModelConfig& config, controller::InferCall& call);
// The handle of a text of a request. One that no model names is added to `own`.
graph::TextHandle handle_of(std::string_view text, std::vector<std::byte>* own);

// The handles of `elements` texts, which must fill `data`; `own` as above. Errors (invalid_argument) name
// `where` and the element: `data` ends in it, or goes on behind the last one.
Result<std::vector<std::byte>> read_texts(const std::string& where, std::size_t elements,
                                          std::span<const std::byte> data, std::vector<std::byte>* own);

// Puts texts in the place of the handles in outputs of BYTES that were asked for; what reads such an output
// afterwards finds append_element()'s. Once. Errors: invalid_argument: they would take more than most_spelt
// bytes together, for a short request may ask for a long text many times; unsupported: an output whose
// extents the data decide; invalid_argument: one that is to be JSON and is not UTF-8, with its element.
Result<> spell_outputs(const repository::ModelConfig& config, const InferRequest& request,
                       controller::InferCall& call);

}  // namespace carillon::frontend
