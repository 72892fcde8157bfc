"""The ops that an exported graph may hold.

All of them are kernels of stock TensorFlow, and of TensorFlow Text's SentencePiece, that
TensorFlow Serving links in since version 2.15. What is not here has not been looked at: add an op
after finding it in the op registry of the oldest server that is to load the export.
"""

# SUPPORTED_TENSORFLOW_OPS of tensorflow/serving's model_servers/BUILD has TensorFlow Text's ops.
_TEXT = frozenset({"SentencepieceOp", "SentencepieceTokenizeOp", "SentencepieceDetokenizeOp"})

_TENSORFLOW = """
    Abs AddV2 All Any ArgMax Assert AssignVariableOp BatchMatMulV2 BiasAdd BroadcastTo Cast ConcatV2
    Const Cos Cumprod Cumsum DisableCopyOnRead Einsum Equal Erf Erfc Exp ExpandDims Fill
    FloorDiv FloorMod GatherNd GatherV2 Greater GreaterEqual Identity IdentityN If IsFinite
    IsNan Less LessEqual Log LogicalAnd LogicalNot LogicalOr MatMul MatrixBandPart Max
    Maximum Mean MergeV2Checkpoints Min Minimum Mul Neg NoOp NotEqual OnesLike Pack Pad
    PadV2 PartitionedCall Placeholder Pow Prod RaggedGather RaggedRange RaggedTensorToTensor
    Range ReadVariableOp RealDiv RegexReplace Relu Reshape RestoreV2 ReverseSequence Rsqrt
    SaveV2 Select SelectV2 Shape ShardedFilename Sigmoid Sin Size Slice Softmax Split SplitV
    Sqrt Square SquaredDifference Squeeze StatefulPartitionedCall StatelessIf StatelessWhile
    StaticRegexFullMatch StaticRegexReplace StopGradient StridedSlice StringJoin
    StringLength Sub Substr Sum Tanh TensorScatterUpdate Tile TopKV2 Transpose
    UnicodeTranscode Unpack VarHandleOp VarIsInitializedOp Where While ZerosLike
"""

ALLOWED_OPERATIONS = frozenset(_TENSORFLOW.split()) | _TEXT
