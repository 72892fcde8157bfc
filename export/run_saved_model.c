/* Runs one signature of a SavedModel through TensorFlow's C API: no Python, and no XLA, which
 * TensorFlow Serving has off as well.
 *
 *     run_saved_model OPS_LIBRARY MODEL SIGNATURE [BATCH_SIZE] < LINES
 *
 * OPS_LIBRARY is the shared library of the tokenizer's ops, MODEL the folder of saved_model.pb. The
 * signature must take string tensors [N] only. Each line of the standard input is a row; where the
 * signature takes several tensors, tabs divide a line into one text for each, in the order of their
 * names. LF alone ends a line. Rows run in batches of BATCH_SIZE, 64 by default; no line at all is
 * one empty batch.
 *
 * For each batch, and for each output in the order of their names, it prints a line
 * `NAME TYPE DIMENSION...` and then a line for each value. */

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tensorflow/c/c_api.h>
#include <tensorflow/c/tf_tstring.h>

/* tensorflow::DisableXlaCompilation(), which TensorFlow Serving calls when it starts. */
void _ZN10tensorflow21DisableXlaCompilationEv(void);

enum { MAXIMUM_TENSORS = 8, MAXIMUM_NAME = 256, DEFAULT_BATCH_SIZE = 64 };

static void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void check(const TF_Status* status, const char* what) {
  if (TF_GetCode(status) != TF_OK) fail(what, TF_Message(status));
}

static void* must(void* memory) {
  if (memory == NULL) fail("memory", "is exhausted");
  return memory;
}

/* Protocol buffers ------------------------------------------------------------------------------
 * Just enough of them to find a signature in the MetaGraphDef that the loader hands back. */

typedef struct {
  const uint8_t* at;
  const uint8_t* end;
} Message;

typedef struct {
  unsigned number;
  uint64_t value; /* of a field that is a number */
  Message bytes;  /* of a field that is a string or a message */
} Field;

static uint64_t read_varint(Message* message) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (message->at == message->end) fail("MetaGraphDef", "ends within a number");
    uint8_t byte = *message->at++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
  fail("MetaGraphDef", "has a number of more than 64 bits");
  return 0;
}

/* Takes the next field off a message; false at its end. */
static bool next_field(Message* message, Field* field) {
  if (message->at == message->end) return false;
  uint64_t tag = read_varint(message);
  uint64_t size = 0;
  *field = (Field){.number = (unsigned)(tag >> 3)};
  switch (tag & 7) {
    case 0:
      field->value = read_varint(message);
      return true;
    case 1:
      size = 8;
      break;
    case 2:
      size = read_varint(message);
      break;
    case 5:
      size = 4;
      break;
    default:
      fail("MetaGraphDef", "has a field of an unknown kind");
  }
  if (size > (uint64_t)(message->end - message->at)) fail("MetaGraphDef", "ends within a field");
  field->bytes = (Message){message->at, message->at + size};
  message->at += size;
  return true;
}

/* The last field of a number, or an empty message. */
static Message find(Message message, unsigned number) {
  Message found = {NULL, NULL};
  for (Field field; next_field(&message, &field);)
    if (field.number == number) found = field.bytes;
  return found;
}

static void copy_text(Message bytes, char text[MAXIMUM_NAME]) {
  size_t size = (size_t)(bytes.end - bytes.at);
  if (size >= MAXIMUM_NAME) fail("MetaGraphDef", "has a very long name");
  if (size > 0) memcpy(text, bytes.at, size);
  text[size] = 0;
}

/* Signatures ---------------------------------------------------------------------------------- */

typedef struct {
  char name[MAXIMUM_NAME];
  TF_Output tensor;
} NamedTensor;

/* An entry of a SignatureDef's inputs or outputs: its name (1) and its TensorInfo (2), of which the
 * tensor's name (1) is `OPERATION:INDEX`. */
static NamedTensor read_tensor(Message entry, TF_Graph* graph) {
  NamedTensor result;
  char tensor[MAXIMUM_NAME];
  copy_text(find(entry, 1), result.name);
  copy_text(find(find(entry, 2), 1), tensor);
  char* colon = strrchr(tensor, ':');
  if (colon == NULL) fail(result.name, "is no tensor");
  *colon = 0;
  result.tensor = (TF_Output){TF_GraphOperationByName(graph, tensor), atoi(colon + 1)};
  if (result.tensor.oper == NULL) fail(tensor, "is not in the graph");
  return result;
}

/* The inputs (1) or outputs (2) of a SignatureDef; returns how many. */
static int read_tensors(Message signature, unsigned side, TF_Graph* graph, NamedTensor* tensors) {
  int count = 0;
  for (Field field; next_field(&signature, &field);) {
    if (field.number != side) continue;
    if (count == MAXIMUM_TENSORS) fail("signature", "has too many tensors");
    tensors[count++] = read_tensor(field.bytes, graph);
  }
  return count;
}

/* The SignatureDef of a name among the signature_def (5) of a MetaGraphDef, a map. */
static Message find_signature(const TF_Buffer* meta_graph, const char* wanted) {
  const uint8_t* data = meta_graph->data;
  Message message = {data, data + meta_graph->length};
  char name[MAXIMUM_NAME];
  for (Field field; next_field(&message, &field);) {
    if (field.number != 5) continue;
    copy_text(find(field.bytes, 1), name);
    if (strcmp(name, wanted) == 0) return find(field.bytes, 2);
  }
  fail(wanted, "is no signature of this model");
  return message;
}

static int by_name(const void* one, const void* other) {
  return strcmp(((const NamedTensor*)one)->name, ((const NamedTensor*)other)->name);
}

/* Lines --------------------------------------------------------------------------------------- */

typedef struct {
  char* bytes;
  size_t size;
} Text;

/* Reads all of a stream. */
static Text read_all(FILE* stream) {
  Text text = {NULL, 0};
  size_t room = 0, count;
  do {
    if (text.size == room) text.bytes = must(realloc(text.bytes, room = 2 * room + 4096));
    count = fread(text.bytes + text.size, 1, room - text.size, stream);
    text.size += count;
  } while (count > 0);
  if (ferror(stream)) fail("standard input", "cannot be read");
  return text;
}

/* Takes what comes before the next `end` off a text; all of it where there is none. */
static Text take(Text* text, char end) {
  char* found = text->size > 0 ? memchr(text->bytes, end, text->size) : NULL;
  size_t size = found == NULL ? text->size : (size_t)(found - text->bytes);
  size_t used = found == NULL ? size : size + 1;
  Text taken = {text->bytes, size};
  *text = (Text){text->bytes + used, text->size - used};
  return taken;
}

/* Takes up to `rows` lines off a text, each of `columns` fields; returns how many. The fields of a
 * column lie side by side: those of column c begin at fields[c * rows]. */
static int take_rows(Text* text, int rows, int columns, Text* fields) {
  int count = 0;
  for (; count < rows && text->size > 0; count++) {
    Text line = take(text, '\n');
    for (int column = 0; column < columns; column++) {
      bool is_last = column == columns - 1;
      if (!is_last && (line.size == 0 || memchr(line.bytes, '\t', line.size) == NULL))
        fail("standard input", "has a line with too few tabs");
      /* Text that goes to a signature of one input may hold tabs itself. */
      fields[column * rows + count] = is_last ? line : take(&line, '\t');
    }
  }
  return count;
}

/* Tensors ------------------------------------------------------------------------------------- */

static void release(void* data, size_t size, void* argument) {
  (void)argument;
  TF_TString* strings = data;
  for (size_t i = 0; i < size / sizeof(TF_TString); i++) TF_TString_Dealloc(&strings[i]);
  free(data);
}

static TF_Tensor* string_tensor(const Text* texts, int count) {
  TF_TString* strings = must(calloc((size_t)count + 1, sizeof(TF_TString)));
  for (int i = 0; i < count; i++) {
    TF_TString_Init(&strings[i]);
    TF_TString_Copy(&strings[i], texts[i].bytes, texts[i].size);
  }
  int64_t dimensions[] = {count};
  size_t size = (size_t)count * sizeof(TF_TString);
  return TF_NewTensor(TF_STRING, dimensions, 1, strings, size, release, NULL);
}

static void print_string(const char* name, const TF_TString* text) {
  const char* bytes = TF_TString_GetDataPointer(text);
  size_t size = TF_TString_GetSize(text);
  if (size > 0 && memchr(bytes, '\n', size) != NULL) fail(name, "holds a line feed");
  fwrite(bytes, 1, size, stdout);
}

static void print_tensor(const char* name, const TF_Tensor* tensor) {
  const TF_DataType type = TF_TensorType(tensor);
  const char* type_name = type == TF_STRING  ? "string"
                          : type == TF_FLOAT ? "float32"
                          : type == TF_INT32 ? "int32"
                          : type == TF_BOOL  ? "bool"
                                             : NULL;
  if (type_name == NULL) fail(name, "is neither string, float32, int32 nor bool");
  printf("%s %s", name, type_name);
  for (int i = 0; i < TF_NumDims(tensor); i++) printf(" %" PRId64, TF_Dim(tensor, i));
  putchar('\n');
  const void* data = TF_TensorData(tensor);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++) {
    if (type == TF_STRING) {
      print_string(name, (const TF_TString*)data + i);
    } else if (type == TF_FLOAT) {
      printf("%.9g", ((const float*)data)[i]); /* as many digits as a float32 has */
    } else if (type == TF_INT32) {
      printf("%" PRId32, ((const int32_t*)data)[i]);
    } else {
      fputs(((const bool*)data)[i] ? "true" : "false", stdout);
    }
    putchar('\n');
  }
}

/* Model --------------------------------------------------------------------------------------- */

typedef struct {
  const char* name;
  TF_Session* session;
  NamedTensor inputs[MAXIMUM_TENSORS];
  NamedTensor outputs[MAXIMUM_TENSORS];
  int input_count;
  int output_count;
} Signature;

static Signature load(const char* model, const char* name, TF_Graph* graph, TF_Status* status) {
  const char* tags[] = {"serve"};
  Signature result = {.name = name};
  TF_Buffer* meta_graph = TF_NewBuffer();
  TF_SessionOptions* options = TF_NewSessionOptions();
  result.session =
      TF_LoadSessionFromSavedModel(options, NULL, model, tags, 1, graph, meta_graph, status);
  check(status, model);
  Message signature = find_signature(meta_graph, name);
  result.input_count = read_tensors(signature, 1, graph, result.inputs);
  result.output_count = read_tensors(signature, 2, graph, result.outputs);
  if (result.input_count == 0) fail(name, "takes no tensor");
  for (int i = 0; i < result.input_count; i++) {
    if (TF_OperationOutputType(result.inputs[i].tensor) != TF_STRING)
      fail(result.inputs[i].name, "is no string tensor");
  }
  qsort(result.inputs, (size_t)result.input_count, sizeof(NamedTensor), by_name);
  qsort(result.outputs, (size_t)result.output_count, sizeof(NamedTensor), by_name);
  TF_DeleteSessionOptions(options);
  TF_DeleteBuffer(meta_graph);
  return result;
}

/* Runs one batch, whose columns begin every `stride` fields, and prints its outputs. */
static void run(const Signature* signature, const Text* fields, int stride, int rows,
                TF_Status* status) {
  TF_Output feeds[MAXIMUM_TENSORS], fetches[MAXIMUM_TENSORS];
  TF_Tensor *texts[MAXIMUM_TENSORS], *results[MAXIMUM_TENSORS];
  for (int i = 0; i < signature->input_count; i++) {
    feeds[i] = signature->inputs[i].tensor;
    texts[i] = string_tensor(fields + i * stride, rows);
  }
  for (int i = 0; i < signature->output_count; i++) fetches[i] = signature->outputs[i].tensor;
  TF_SessionRun(signature->session, NULL, feeds, texts, signature->input_count, fetches, results,
                signature->output_count, NULL, 0, NULL, status);
  check(status, signature->name);
  for (int i = 0; i < signature->output_count; i++) {
    print_tensor(signature->outputs[i].name, results[i]);
    TF_DeleteTensor(results[i]);
  }
  for (int i = 0; i < signature->input_count; i++) TF_DeleteTensor(texts[i]);
}

int main(int count, char** arguments) {
  if (count != 4 && count != 5)
    fail("usage", "run_saved_model OPS_LIBRARY MODEL SIGNATURE [BATCH_SIZE] < LINES");
  int batch_size = count == 5 ? atoi(arguments[4]) : DEFAULT_BATCH_SIZE;
  if (batch_size < 1 || batch_size > 1 << 20) fail("BATCH_SIZE", "must be 1 to 1048576");
  _ZN10tensorflow21DisableXlaCompilationEv();

  /* The tokenizer's ops must be known before a graph that holds them is read. */
  TF_Status* status = TF_NewStatus();
  TF_LoadLibrary(arguments[1], status);
  check(status, arguments[1]);
  TF_Graph* graph = TF_NewGraph();
  Signature signature = load(arguments[2], arguments[3], graph, status);

  Text all = read_all(stdin), left = all;
  Text* fields = must(calloc((size_t)(batch_size * signature.input_count), sizeof(Text)));
  do {
    int rows = take_rows(&left, batch_size, signature.input_count, fields);
    run(&signature, fields, batch_size, rows, status);
  } while (left.size > 0);

  free(fields);
  free(all.bytes);
  TF_DeleteSession(signature.session, status);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  if (fflush(stdout) != 0) fail("standard output", "cannot be written");
  return 0;
}
