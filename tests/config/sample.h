// A config struct family with every kind of field, for the tests of the config machinery only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/fields.h"
#include "config/problems.h"

namespace longreach::sample {

enum class Shape { round, square, squircle };

struct Window {
    int64_t size = 0;
    double tau = 10;
    Shape shape = Shape::round;
    void fields(config::Fields& f) {
        f.integer("size", size, {.min = 0, .max = 4096}, {"keys seen; 0: all"});
        f.number("tau", tau, {.min = 0, .open_min = true}, {"length scale, in tokens"});
        f.choice<Shape>("shape", shape,
                        {{Shape::round, "round", "no corners"},
                         {Shape::square, "square", "four"},
                         {Shape::squircle, "squircle"}},
                        {"form of the window"});
    }
};

struct Attention {
    int64_t heads = 4;
    bool gate = false;
    Window window;
    void fields(config::Fields& f) {
        f.integer("heads", heads, {.min = 1, .max = 64}, {"query heads"});
        f.flag("gate", gate, {"multiply the output by a gate"});
        f.section("window", window, {"which keys a query sees"});
    }
};

struct Model {
    int64_t width = 128;
    double dropout = 0;
    Attention attention;
    std::map<std::string, Attention> layouts;
    std::vector<std::string> pattern;
    void fields(config::Fields& f) {
        f.integer("width", width, {.min = 1}, {"channels"});
        f.number("dropout", dropout, {.min = 0, .max = 1, .open_max = true}, {"share of zeroed activations"});
        f.section("attention", attention, {"attention of every layer"});
        f.variations("layouts", layouts, attention, {"named variations of attention"});
        f.texts("pattern", pattern, {"layout names, repeated over the layers"});
    }
};

struct Stage {
    int64_t steps = 100;
    int64_t context = 2048;
    void fields(config::Fields& f) {
        f.integer("steps", steps, {.min = 1}, {"optimiser steps"});
        f.integer("context", context, {.min = 16, .max = 1 << 20, .tokens = true},
                  {"sequence length, in tokens"});
    }
};

struct Run {
    std::string name;
    int64_t seed = 1;
    int64_t init_seed = -1;
    double shift = -1.5;
    void fields(config::Fields& f) {
        f.text("name", name, {"of the run directory", true});
        f.integer("seed", seed, {}, {"of everything random"});
        f.integer("init_seed", init_seed, {.min = -1}, {"of the weights; -1: run.seed"});
        f.number("shift", shift, {}, {"any number"});
    }
};

struct Eval {
    int64_t every = 250;
    std::vector<int64_t> lengths = {2048, 4096};
    void fields(config::Fields& f) {
        f.integer("every", every, {.min = 1}, {"steps between evaluations"});
        f.integers("lengths", lengths, {.min = 1, .max = 1 << 20, .tokens = true},
                   {"context lengths | all scored on the same tokens"});
    }
};

struct Experiment {
    Run run;
    Model model;
    std::vector<Stage> stages = {{.steps = 10, .context = 64}};
    Eval eval;
    void fields(config::Fields& f) {
        f.section("run", run, {"the run itself"});
        f.section("model", model, {"the network"});
        f.list("stages", stages, {"training stages, in order"});
        f.section("eval", eval, {"evaluation", true});
    }
    // One rule of each kind: a contradiction, a knob without effect, a value filled in.
    void check(config::Problems& p) {
        if (model.width % model.attention.heads != 0)
            p.add("model.width", "not a multiple of the heads", "model.attention.heads");
        if (model.attention.window.size == 0)
            p.no_effect("model.attention.window.tau", "there is no window", "model.attention.window.size");
        if (run.init_seed == -1 && run.seed >= 0) run.init_seed = run.seed;
    }
};

}  // namespace longreach::sample
