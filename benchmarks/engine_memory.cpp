// What llama.cpp says a model takes, in bytes, for benchmarks/memory_arithmetic.py and
// benchmarks/memory_on_card.py.
//
//   engine_memory FILE [CONTEXT SLOTS UBATCH TYPE_K TYPE_V FLASH OUTPUTS]...
//   engine_memory --load FILE CONTEXT SLOTS UBATCH TYPE_K TYPE_V FLASH OUTPUTS
//
// The first asks the engine's dry run. The second loads the model, evaluates a batch and a token,
// and holds all of it until its input ends, so that the driver can be asked. Every layer goes to
// the card where there is one; what is there is told apart (`card_...`).
//
// FILE may be a header alone (a sparse file of the full size): nothing is allocated. CONTEXT is of
// one slot, FLASH 0 or 1, OUTPUTS how many tokens of a batch get logits. One line of JSON for each
// group of settings. `llama-fit-params --fit-print on` prints the same sums in whole MiB, with as
// many outputs as the batch has tokens.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llama-ext.h"
#include "ggml-backend.h"
#include "llama.h"

static ggml_type type_of(const char * name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * known = ggml_type_name((ggml_type) i);
        if (known && !strcmp(known, name)) return (ggml_type) i;
    }
    fprintf(stderr, "no type %s\n", name);
    exit(2);
}

static void only_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static bool on_card(ggml_backend_buffer_type_t type) {
    // A pinned host buffer belongs to the card's device too, and lies in main memory.
    ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
    return device && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_GPU &&
           !ggml_backend_buft_is_host(type);
}

// A batch and a token: scratch pages are touched, kernels and their work spaces are there.
static bool evaluate(llama_context * context, int tokens) {
    std::vector<llama_token> batch(tokens, 1);
    if (llama_decode(context, llama_batch_get_one(batch.data(), tokens))) return false;
    return !llama_decode(context, llama_batch_get_one(batch.data(), 1));
}

int main(int argc, char ** argv) {
    llama_log_set(only_errors, nullptr);
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    const bool load = argc > 1 && !strcmp(argv[1], "--load");
    const int file = load ? 2 : 1;
    model_params.no_alloc = !load;
    model_params.load_mode = LLAMA_LOAD_MODE_NONE;
    model_params.n_gpu_layers = 999;
    model_params.split_mode = LLAMA_SPLIT_MODE_NONE;
    llama_model * model =
        argc > file ? llama_model_load_from_file(argv[file], model_params) : nullptr;
    if (!model) return 1;
    for (int i = file + 1; i + 7 <= argc; i += 7) {
        llama_context_params params = llama_context_default_params();
        params.n_seq_max = atoi(argv[i + 1]);
        params.n_ctx = atoi(argv[i]) * params.n_seq_max;
        params.n_batch = params.n_ubatch = atoi(argv[i + 2]);
        params.type_k = type_of(argv[i + 3]);
        params.type_v = type_of(argv[i + 4]);
        params.flash_attn_type =
            atoi(argv[i + 5]) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        params.n_outputs_max = atoi(argv[i + 6]);
        params.n_outputs_max_per_seq = params.n_outputs_max;
        params.swa_full = false;  // llama-server's default, not the library's
        params.kv_unified = false;
        llama_context * context = llama_init_from_model(model, params);
        if (!context) {
            printf("null\n");
            fflush(stdout);
            continue;
        }
        if (load && !evaluate(context, params.n_ubatch)) return 1;
        llama_memory_breakdown_data sum, card;
        for (const auto & [type, part] : llama_get_memory_breakdown(context)) {
            llama_memory_breakdown_data & into = on_card(type) ? card : sum;
            into.model += part.model;
            into.context += part.context;
            into.compute += part.compute;
        }
        printf("{\"tensors\": %llu, \"model\": %zu, \"context\": %zu, \"compute\": %zu, "
               "\"card_model\": %zu, \"card_context\": %zu, \"card_compute\": %zu}\n",
               (unsigned long long) llama_model_size(model), sum.model, sum.context, sum.compute,
               card.model, card.context, card.compute);
        fflush(stdout);
        while (load && getchar() != EOF) {
        }
        llama_free(context);
    }
    llama_model_free(model);
    return 0;
}
