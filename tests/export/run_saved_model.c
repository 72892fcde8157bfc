/* Runs one signature of a SavedModel through TensorFlow's C API: no Python, and no XLA, which
 * TensorFlow Serving has off as well.
 *
 *     run_saved_model OPS_LIBRARY MODEL SIGNATURE [TEXT ...]
 *
 * The signature must take one string tensor [N]. For each output, in the order of their names, it
 * prints a line `NAME DIMENSION...` and then a line for each value. */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tensorflow/c/c_api.h>
#include <tensorflow/c/tf_tstring.h>

/* tensorflow::DisableXlaCompilation(), which TensorFlow Serving calls when it starts. */
void _ZN10tensorflow21DisableXlaCompilationEv(void);

enum { MAXIMUM_OUTPUTS = 8, MAXIMUM_NAME = 256 };

static void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void check(const TF_Status* status, const char* what) {
  if (TF_GetCode(status) != TF_OK) fail(what, TF_Message(status));
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

/* Signatures -------------------------------------------------------------------------------------*/

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
    if (count == MAXIMUM_OUTPUTS) fail("signature", "has too many tensors");
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

/* Tensors ----------------------------------------------------------------------------------------*/

static void release(void* data, size_t size, void* argument) {
  (void)size;
  (void)argument;
  free(data);
}

static TF_Tensor* string_tensor(char** texts, int count) {
  TF_TString* strings = calloc((size_t)count + 1, sizeof(TF_TString));
  for (int i = 0; i < count; i++) {
    TF_TString_Init(&strings[i]);
    TF_TString_Copy(&strings[i], texts[i], strlen(texts[i]));
  }
  int64_t dimensions[] = {count};
  size_t size = (size_t)count * sizeof(TF_TString);
  return TF_NewTensor(TF_STRING, dimensions, 1, strings, size, release, NULL);
}

static void print_tensor(const char* name, const TF_Tensor* tensor) {
  fputs(name, stdout);
  for (int i = 0; i < TF_NumDims(tensor); i++) printf(" %lld", (long long)TF_Dim(tensor, i));
  putchar('\n');
  const void* data = TF_TensorData(tensor);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++) {
    if (TF_TensorType(tensor) == TF_FLOAT) {
      printf("%.9g\n", ((const float*)data)[i]);
    } else if (TF_TensorType(tensor) == TF_STRING) {
      const TF_TString* text = (const TF_TString*)data + i;
      fwrite(TF_TString_GetDataPointer(text), 1, TF_TString_GetSize(text), stdout);
      putchar('\n');
    } else {
      fail(name, "is neither string nor float32");
    }
  }
}

int main(int count, char** arguments) {
  if (count < 4) fail("usage", "run_saved_model OPS_LIBRARY MODEL SIGNATURE [TEXT ...]");
  _ZN10tensorflow21DisableXlaCompilationEv();

  /* The tokenizer's ops must be known before a graph that holds them is read. */
  TF_Status* status = TF_NewStatus();
  TF_LoadLibrary(arguments[1], status);
  check(status, arguments[1]);

  const char* tags[] = {"serve"};
  TF_Graph* graph = TF_NewGraph();
  TF_Buffer* meta_graph = TF_NewBuffer();
  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_Session* session = TF_LoadSessionFromSavedModel(options, NULL, arguments[2], tags, 1, graph,
                                                     meta_graph, status);
  check(status, arguments[2]);

  Message signature = find_signature(meta_graph, arguments[3]);
  NamedTensor inputs[MAXIMUM_OUTPUTS], outputs[MAXIMUM_OUTPUTS];
  if (read_tensors(signature, 1, graph, inputs) != 1) fail(arguments[3], "must take one tensor");
  int output_count = read_tensors(signature, 2, graph, outputs);
  qsort(outputs, (size_t)output_count, sizeof(NamedTensor), by_name);

  TF_Output fetches[MAXIMUM_OUTPUTS];
  TF_Tensor* results[MAXIMUM_OUTPUTS];
  for (int i = 0; i < output_count; i++) fetches[i] = outputs[i].tensor;
  TF_Tensor* texts = string_tensor(arguments + 4, count - 4);
  TF_SessionRun(session, NULL, &inputs[0].tensor, &texts, 1, fetches, results, output_count, NULL,
                0, NULL, status);
  check(status, arguments[3]);
  for (int i = 0; i < output_count; i++) {
    print_tensor(outputs[i].name, results[i]);
    TF_DeleteTensor(results[i]);
  }

  TF_DeleteTensor(texts);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteBuffer(meta_graph);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
