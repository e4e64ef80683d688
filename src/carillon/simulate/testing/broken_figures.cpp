// Figures that do not follow from what was seen.
#include "carillon/simulate/testing/broken_promises.h"
#include "carillon/simulate/testing/checker_world.h"

namespace carillon::simulate::testing::broken {
namespace {

const Fault of_figures[] = {
    // -- figures
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.loads; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.unloads; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.stopped; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.too_late; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.decisions; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.span += 1ns; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.batch_sizes.at(1); }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.busy.at(0) += 1ns; }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { f.timeline.at(3).end += 1ns; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.models.pop_back(); }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { f.models.at(0).name.assign(1, 'x'); }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.models.at(0).slo += 1ns; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).offered; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).on_time; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).late; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).refused; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).cancelled; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).batches; }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).batched; }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { f.models.at(0).latencies.at(2) += 1ns; }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).offered_by.at(1); }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { ++f.models.at(0).on_time_by.at(1); }; }},
    {"figures that are not so", [](World& w) { w.figures = [](Figures& f) { f.intervals.pop_back(); }; }},
    {"figures that are not so",
     [](World& w) { w.figures = [](Figures& f) { ++f.intervals.at(1).offered; }; }},
};

}  // namespace

std::span<const Fault> by_figures() {
  return of_figures;
}

}  // namespace carillon::simulate::testing::broken
