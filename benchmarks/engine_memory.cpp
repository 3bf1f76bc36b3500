// What llama.cpp's own dry run says a model takes, in bytes, for benchmarks/memory_arithmetic.py.
//
//   engine_memory FILE [CONTEXT SLOTS UBATCH TYPE_K TYPE_V FLASH OUTPUTS]...
//
// FILE may be a header alone (a sparse file of the full size): nothing is allocated. CONTEXT is of
// one slot, FLASH 0 or 1, OUTPUTS how many tokens of a batch get logits. One line of JSON for each
// group of settings. `llama-fit-params --fit-print on` prints the same sums in whole MiB, with as
// many outputs as the batch has tokens.
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

int main(int argc, char ** argv) {
    llama_log_set(only_errors, nullptr);
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    model_params.no_alloc = true;
    model_params.load_mode = LLAMA_LOAD_MODE_NONE;
    llama_model * model = argc > 1 ? llama_model_load_from_file(argv[1], model_params) : nullptr;
    if (!model) return 1;
    for (int i = 2; i + 7 <= argc; i += 7) {
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
        llama_memory_breakdown_data sum;
        for (const auto & [type, part] : llama_get_memory_breakdown(context)) {
            sum.model += part.model;
            sum.context += part.context;
            sum.compute += part.compute;
        }
        printf("{\"tensors\": %llu, \"model\": %zu, \"context\": %zu, \"compute\": %zu}\n",
               (unsigned long long) llama_model_size(model), sum.model, sum.context, sum.compute);
        fflush(stdout);
        llama_free(context);
    }
    llama_model_free(model);
    return 0;
}
