// Made by `make schemas` from the definitions that the server decodes with. Optional fields are absent if
// they have no value.

/** Base64; the comment of a field says what it encodes. */
export type Base64 = string;

/** The current dialect of /v1/realtime. */
export namespace Realtime {
  /** Events of a client. */
  type ClientEvent = SessionInit | InputAppend | SessionClose;
  /** Events of the server. */
  type ServerEvent = SessionQueued | SessionQueueUpdate | SessionQueueDone | SessionCreated | SessionResumed | SessionMoved | ListenDelta | TextDelta | AudioDelta | SessionClosed | ErrorEvent;
  /** Opens the session. `payload` is required and may be empty. */
  interface SessionInit {
    type: "session.init";
    payload: InitPayload;
    /** The trace that the client works in, as the headers of W3C Trace Context have it. The session's spans link to it. An invalid one is ignored. */
    trace_context?: unknown;
  }
  /** The settings of a session. Voice fields are also accepted here; those inside `voice` win. */
  interface InitPayload {
    /** Base64 of a WAV file or of raw float32 mono at 16 kHz, 0.5 s to 30 s, with or without `data:...;base64,` before it. */
    ref_audio_base64?: Base64 | null;
    /** Alias of `ref_audio_base64`. */
    ref_audio?: Base64 | null;
    /** The reference voice of the speech, in the same form; by default `ref_audio_base64`. */
    tts_ref_audio_base64?: Base64 | null;
    /** Alias of `tts_ref_audio_base64`. */
    tts_ref_audio?: Base64 | null;
    /** Id of a voice registered with the server; a leading directory and a file extension are removed. */
    ref_audio_path?: string | null;
    /** The system prompt. */
    system_prompt?: string | null;
    /** Alias of `system_prompt`. */
    instructions?: string | null;
    config?: ConfigFields | null;
    /** Alias of `config`. */
    duplex?: ConfigFields | null;
    voice?: VoiceFields | null;
    /** Alias of `voice`. */
    defaults?: VoiceFields | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
    /** False: text only, as with `config.generate_audio`. */
    use_tts?: boolean | null;
    /** The same seed and input give the same output. Random by default. */
    seed?: number | null;
    /** Name of a served model; any served model by default. */
    model?: string | null;
    /** Ignored: the URL decides. */
    mode?: unknown;
    /** Without effect. */
    tools?: Array<unknown> | null;
  }
  /** The voice of the model, in its prompt and its speech; audio takes precedence over a voice id. */
  interface VoiceFields {
    /** Base64 of a WAV file or of raw float32 mono at 16 kHz, 0.5 s to 30 s, with or without `data:...;base64,` before it. */
    ref_audio_base64?: Base64 | null;
    /** Alias of `ref_audio_base64`. */
    ref_audio?: Base64 | null;
    /** The reference voice of the speech, in the same form; by default `ref_audio_base64`. */
    tts_ref_audio_base64?: Base64 | null;
    /** Alias of `tts_ref_audio_base64`. */
    tts_ref_audio?: Base64 | null;
    /** Id of a voice registered with the server; a leading directory and a file extension are removed. */
    ref_audio_path?: string | null;
  }
  /** More input: an append of any length. Units of one second are cut from the stream of appends. */
  interface InputAppend {
    type: "input.append";
    input: AppendInput;
    /** The trace that the client works in, as the headers of W3C Trace Context have it. The session's spans link to it. An invalid one is ignored. */
    trace_context?: unknown;
  }
  /** A piece of microphone audio, with pictures of the camera. Audio is required without `force_listen`. */
  interface AppendInput {
    /** Base64 of raw mono PCM at 16 kHz, at most 60 s of it. */
    audio?: Base64 | AudioObject | null;
    /** Alias of `audio`. */
    audio_base64?: Base64 | null;
    /** Alias of `audio`. */
    audio_data?: Base64 | null;
    /** Pictures during the audio, oldest first. Ignored in sessions without video. */
    video_frames?: Array<Base64 | PictureObject> | null;
    /** Alias of `video_frames`. */
    frame_base64_list?: Array<Base64 | PictureObject> | null;
    /** Alias of `video_frames`. */
    frames?: Array<Base64 | PictureObject> | null;
    /** Barge-in: the model listens to this input and all waiting input before it; its open response ends. */
    force_listen?: boolean | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
    hints?: Hints | null;
    /** The client's id for this append, repeated in every answer to it; by default a new one. */
    input_id?: string | null;
    /** Samples: little-endian float32 in [-1, 1], the default, or little-endian int16. */
    format?: "f32" | "pcm16" | null;
    /** Hz of the audio sent. */
    sample_rate?: 16000 | null;
    /** Alias of `sample_rate`. */
    sample_rate_hz?: 16000 | null;
  }
  /** The long spelling of `audio`. */
  interface AudioObject {
    /** Base64 of raw mono PCM at 16 kHz, at most 60 s of it. */
    data?: Base64 | null;
    /** Alias of `data`. */
    base64?: Base64 | null;
    /** Alias of `data`. */
    audio_base64?: Base64 | null;
  }
  /** The long spelling of a picture. */
  interface PictureObject {
    /** Base64 of a JPEG, PNG or WebP file of at most 1 MiB and 4 megapixels. */
    data?: Base64 | null;
    /** Alias of `data`. */
    base64?: Base64 | null;
  }
  /** Older location of two fields of an append. */
  interface Hints {
    force_listen?: boolean | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
  }
  /** Ends the session. */
  interface SessionClose {
    type: "session.close";
    /** Repeated in `session.closed` of the current dialect if it matches `[a-z0-9_]{1,64}`. */
    reason?: string | null;
  }
  /** Decoding settings. An absent field is the model's default; other keys are accepted and named in `unsupported_fields`. */
  interface ConfigFields {
    /** False: text only. */
    generate_audio?: boolean | null;
    ls_mode?: "explicit" | null;
    /** The number of units at the beginning in which the model always listens. */
    force_listen_count?: number | null;
    /** The most text tokens spoken in one unit. */
    max_new_speak_tokens_per_chunk?: number | null;
    decode_mode?: "greedy" | "sampling" | null;
    temperature?: number | null;
    top_k?: number | null;
    top_p?: number | null;
    text_repetition_penalty?: number | null;
    /** The number of latest tokens to which the repetition penalty applies. */
    text_repetition_window_size?: number | null;
    /** Penalty on ending the turn; above 1, the end is less likely. */
    length_penalty?: number | null;
    /** Factor on the probability of listening. */
    listen_prob_scale?: number | null;
    /** The model always listens if listening is among this many most likely choices. */
    listen_top_k?: number | null;
    tts_temperature?: number | null;
    chunk_ms?: 1000 | null;
    sample_rate?: 16000 | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
  }
  /** No slot was free at once. `position` counts from 1 over all kinds of session. */
  interface SessionQueued {
    type: "session.queued";
    position: number;
    estimated_wait_s: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** The session is still waiting; sent every 3 s. */
  interface SessionQueueUpdate {
    type: "session.queue_update";
    position: number;
    estimated_wait_s: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** A slot is assigned: the session may be configured. */
  interface SessionQueueDone {
    type: "session.queue_done";
  }
  /** The session is configured and takes input. */
  interface SessionCreated {
    type: "session.created";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    session_id: string;
    mode: "full_duplex";
    /** Tokens of the settings: system prompt and voice. */
    usage: TokenUsage;
    /** Paths in `payload` of fields that were accepted but have no effect. */
    unsupported_fields?: Array<string>;
    /** The name of the recording of this session. */
    recording_session_id?: string;
    resume?: ResumeOffer;
  }
  /** Figures of an event; unknown ones are absent. Times are in milliseconds, lengths in tokens. */
  interface Metrics {
    /** Tokens in the context now. */
    kv_cache_length?: number;
    /** The most tokens that the context can hold. */
    n_past_max?: number;
    /** Tokens of the settings: system prompt and voice. */
    prompt_length?: number;
    queue_ms?: number;
    prefill_ms?: number;
    generate_ms?: number;
    cost_llm_ms?: number;
    cost_tts_ms?: number;
    cost_token2wav_ms?: number;
    /** The time from the completion of the unit in the adapter until its answer was sent. */
    wall_clock_ms?: number;
    n_tokens?: number;
    n_tts_tokens?: number;
    vision_slices?: number;
    vision_tokens?: number;
    /** Zeros added to complete the unit. */
    padded_samples?: number;
    /** Samples that had to be clipped to [-1, 1]. */
    clipped_samples?: number;
    /** The unit came too late and was not given to the model. */
    dropped?: boolean;
    /** Dropped units of the session so far. */
    dropped_total?: number;
    /** Pictures that were ignored, because the session has no video. */
    ignored_frames?: number;
    /** The server added this unit of silence to give the model time to answer. */
    injected_silence?: boolean;
  }
  /** Tokens consumed and produced, of a unit or of the session so far. */
  interface TokenUsage {
    total_tokens: number;
    input_tokens: number;
    output_tokens: number;
    input_token_details: InputTokenDetails;
    output_token_details: OutputTokenDetails;
  }
  /** Input tokens by kind. */
  interface InputTokenDetails {
    text_tokens: number;
    audio_tokens: number;
    vision_tokens: number;
    /** Tokens whose context was found in the prefix cache instead of being computed again. */
    cached_tokens: number;
  }
  /** Output tokens by kind. */
  interface OutputTokenDetails {
    text_tokens: number;
    audio_tokens: number;
  }
  /** The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the number of the last event that came, within `window_s` seconds of the loss. */
  interface ResumeOffer {
    /** Valid once; `session.resumed` has the next token. */
    token: string;
    window_s: number;
  }
  /** The first event of a resumed connection, before all missed events. It has no number itself. */
  interface SessionResumed {
    type: "session.resumed";
    resume: ResumeOffer;
    /** The `last_event` that the client sent; the next event has the number after it. */
    last_event: number;
    /** The number of messages of the client that the session received; later ones were lost. */
    received: number;
  }
  /** Another worker continues the session of a lost or draining worker. No input or output is lost. */
  interface SessionMoved {
    type: "session.moved";
    /** Seconds in which no unit was answered. */
    pause_s: number;
  }
  /** The model listens. With `response_id` that response is over; without `reason` it was interrupted. */
  interface ListenDelta {
    type: "response.output.delta";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    kind: "listen";
    session_id: string;
    /** The append that completed the unit. */
    input_id: string;
    /** The same in all events of one turn of the model. */
    response_id?: string;
    /** The number of the unit, from 0; only in the first event of the unit. */
    chunk_index?: number;
    /** Tokens of the session so far; only in the first event of a unit. */
    usage?: TokenUsage;
    /** Tokens of this unit; only in its first event. */
    chunk_usage?: TokenUsage;
    /** The model has ended its turn. */
    reason?: "turn_end";
  }
  /** Text of a unit. */
  interface TextDelta {
    type: "response.output.delta";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    kind: "text";
    session_id: string;
    /** The append that completed the unit. */
    input_id: string;
    /** The same in all events of one turn of the model. */
    response_id?: string;
    /** The number of the unit, from 0; only in the first event of the unit. */
    chunk_index?: number;
    /** Tokens of the session so far; only in the first event of a unit. */
    usage?: TokenUsage;
    /** Tokens of this unit; only in its first event. */
    chunk_usage?: TokenUsage;
    text: string;
  }
  /** Audio of a unit. */
  interface AudioDelta {
    type: "response.output.delta";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    kind: "audio";
    session_id: string;
    /** The append that completed the unit. */
    input_id: string;
    /** The same in all events of one turn of the model. */
    response_id?: string;
    /** The number of the unit, from 0; only in the first event of the unit. */
    chunk_index?: number;
    /** Tokens of the session so far; only in the first event of a unit. */
    usage?: TokenUsage;
    /** Tokens of this unit; only in its first event. */
    chunk_usage?: TokenUsage;
    /** Base64 of raw little-endian float32, mono, 24 kHz, within [-1, 1]. */
    audio: Base64;
  }
  /** The last event of a session. `session_id` and `usage` are absent before `session.created`. */
  interface SessionClosed {
    type: "session.closed";
    /** After `session.close`: the client's reason, `client_closed` if that does not match the pattern, or `user_stop` by default. Otherwise `timeout`, `context_full`, `server_shutdown`, `backend_error` or `slow_consumer`. */
    reason: string;
    session_id?: string;
    usage?: TokenUsage;
    diagnostic?: Diagnostic;
  }
  /** The reason for the end of the session. */
  interface Diagnostic {
    /** A sentence for people. */
    message: string;
    /** The id by which the operator of the server finds the session. */
    trace_id?: string;
  }
  /** An event was refused, a unit failed, or the session ends. */
  interface ErrorEvent {
    type: "error";
    error: ErrorBody;
  }
  /** An error. */
  interface ErrorBody {
    code: ErrorCode;
    /** For people: names the field, the expected and the actual value. */
    message: string;
    /** The side that caused the error. */
    type: "client_error" | "server_error";
    /** Path of the field at fault, from the root of the event. */
    param?: string;
    /** The append at fault. */
    input_id?: string;
    /** The id by which the operator of the server finds the session. */
    trace_id?: string;
  }
  /** Error codes, for programs. */
  type ErrorCode = "inference_error" | "init_timeout" | "invalid_event" | "invalid_frame" | "invalid_json" | "invalid_payload" | "missing_field" | "not_ready" | "paused" | "queue_cancelled" | "queue_full" | "queue_timeout" | "quota_exceeded" | "rate_limited" | "resume_failed" | "service_unavailable" | "slow_consumer" | "unauthorized" | "unknown_event" | "unsupported_mode" | "unsupported_protocol" | "worker_busy" | "worker_connect_failed";
}

/** The current dialect of /v1/realtime in mode=chat. */
export namespace RealtimeChat {
  /** Events of a client. */
  type ClientEvent = SessionInit | TurnAppend | SessionClose;
  /** Events of the server. */
  type ServerEvent = SessionQueued | SessionQueueUpdate | SessionQueueDone | ChatCreated | SessionResumed | ReplyText | ReplyAudio | ReplyThinking | ReplyCall | ResponseDone | SessionClosed | ErrorEvent;
  /** Opens the session. `payload` is required and may be empty. */
  interface SessionInit {
    type: "session.init";
    payload: InitPayload;
    /** The trace that the client works in, as the headers of W3C Trace Context have it. The session's spans link to it. An invalid one is ignored. */
    trace_context?: unknown;
  }
  /** The settings of a session. Voice fields are also accepted here; those inside `voice` win. */
  interface InitPayload {
    /** Base64 of a WAV file or of raw float32 mono at 16 kHz, 0.5 s to 30 s, with or without `data:...;base64,` before it. */
    ref_audio_base64?: Base64 | null;
    /** Alias of `ref_audio_base64`. */
    ref_audio?: Base64 | null;
    /** The reference voice of the speech, in the same form; by default `ref_audio_base64`. */
    tts_ref_audio_base64?: Base64 | null;
    /** Alias of `tts_ref_audio_base64`. */
    tts_ref_audio?: Base64 | null;
    /** Id of a voice registered with the server; a leading directory and a file extension are removed. */
    ref_audio_path?: string | null;
    /** The system prompt. */
    system_prompt?: string | null;
    /** Alias of `system_prompt`. */
    instructions?: string | null;
    config?: ConfigFields | null;
    /** Alias of `config`. */
    duplex?: ConfigFields | null;
    voice?: VoiceFields | null;
    /** Alias of `voice`. */
    defaults?: VoiceFields | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
    /** False: text only, as with `config.generate_audio`. */
    use_tts?: boolean | null;
    /** The same seed and input give the same output. Random by default. */
    seed?: number | null;
    /** Name of a served model; any served model by default. */
    model?: string | null;
    /** Ignored: the URL decides. */
    mode?: unknown;
    /** Without effect. */
    tools?: Array<unknown> | null;
  }
  /** The voice of the model, in its prompt and its speech; audio takes precedence over a voice id. */
  interface VoiceFields {
    /** Base64 of a WAV file or of raw float32 mono at 16 kHz, 0.5 s to 30 s, with or without `data:...;base64,` before it. */
    ref_audio_base64?: Base64 | null;
    /** Alias of `ref_audio_base64`. */
    ref_audio?: Base64 | null;
    /** The reference voice of the speech, in the same form; by default `ref_audio_base64`. */
    tts_ref_audio_base64?: Base64 | null;
    /** Alias of `tts_ref_audio_base64`. */
    tts_ref_audio?: Base64 | null;
    /** Id of a voice registered with the server; a leading directory and a file extension are removed. */
    ref_audio_path?: string | null;
  }
  /** Requests an answer. Four further turns may wait while one is answered. */
  interface TurnAppend {
    type: "input.append";
    input: TurnFields;
    /** The trace that the client works in, as the headers of W3C Trace Context have it. The session's spans link to it. An invalid one is ignored. */
    trace_context?: unknown;
  }
  /** A turn with its whole conversation: the server keeps nothing of earlier turns. The answer is spoken only with `tts.enabled` or `use_tts_template`. */
  interface TurnFields {
    /** The whole conversation so far, with at least one message of the user. */
    messages: Array<ChatMessage>;
    /** True by default: the answer comes piece by piece. False: it comes at once. */
    streaming?: boolean | null;
    generation?: GenerationFields | null;
    tts?: SpeechFields | null;
    /** True: the answer is spoken, as with `tts.enabled`, and the model is told so. */
    use_tts_template?: boolean | null;
    image?: ImageFields | null;
    /** True: pictures and sound are synchronous; the model gets videos with their sound. False by default. */
    omni_mode?: boolean | null;
    /** The model may think before it answers, if it can; its thinking is no part of the answer. */
    enable_thinking?: boolean | null;
    /** Functions that the model may call, with different names. */
    tools?: Array<ToolFields> | null;
    /** `auto` by default. `required`, or a named tool, forces a call with arguments that match the schema. */
    tool_choice?: "auto" | "none" | "required" | ChosenTool | null;
    /** True by default. False: at most one call in the answer. */
    parallel_tool_calls?: boolean | null;
    /** The client's id for this append, repeated in every answer to it; by default a new one. */
    input_id?: string | null;
  }
  /** A message of one side. */
  interface ChatMessage {
    role: "assistant" | "system" | "tool" | "user";
    /** A text, or parts in their order; at most 4 pictures in one message. Only a message with `tool_calls` may have no content; the content of a message of a tool is a text. */
    content?: string | Array<TextPart | ImagePart | AudioPart | VideoPart> | null;
    /** For role `assistant`: the calls that the model made. */
    tool_calls?: Array<CallFields> | null;
    /** For role `tool`: the id of the call, in an earlier message, whose result this message is. */
    tool_call_id?: string | null;
  }
  /** A text. */
  interface TextPart {
    type: "text";
    text: string;
  }
  /** A picture. */
  interface ImagePart {
    type: "image";
    /** Base64 of a JPEG, PNG or WebP file of at most 1 MiB and 4 megapixels. */
    data: Base64;
  }
  /** A clip of audio. */
  interface AudioPart {
    type: "audio";
    /** Base64 of a WAV file or of raw little-endian float32, mono; at most 300 s in all clips of a request together. */
    data: Base64;
    /** Hz of raw samples, 16000 by default. A WAV file says it itself. */
    sample_rate?: number | null;
  }
  /** A video: its frames and, with `omni_mode`, its sound between them. */
  interface VideoPart {
    type: "video";
    /** Base64 of an MP4, MOV, WebM or Matroska file of at most 4096 x 4096 pixels. At most 4 videos in a request, of 10 minutes all together. */
    data: Base64;
    /** Frames used of each second, 1 by default; those after the first are joined into one picture. */
    stack_frames?: number | null;
  }
  /** A call that the model made. */
  interface CallFields {
    id: string;
    type?: "function" | null;
    function: CalledFunction;
  }
  /** A called function with its arguments. */
  interface CalledFunction {
    name: string;
    /** A JSON object, at most 65,536 bytes. */
    arguments: string;
  }
  /** Sampling of the answer's tokens. */
  interface GenerationFields {
    /** The most tokens of the answer, 512 by default. */
    max_new_tokens?: number | null;
    /** 0.7 by default; 0 always takes the most likely token. */
    temperature?: number | null;
    /** 0.8 by default. */
    top_p?: number | null;
    /** 1.0 by default; above it answers get longer, below it shorter. */
    length_penalty?: number | null;
  }
  /** Speech of the answer. */
  interface SpeechFields {
    enabled?: boolean | null;
    mode?: "audio_assistant" | "audio_roleplay" | "default" | "omni" | "voice_cloning" | null;
    /** The voice to speak with. */
    ref_audio_data?: Base64 | null;
    /** Id of a voice registered with the server, without effect beside `ref_audio_data`; a leading directory and a file extension are removed. */
    ref_audio_path?: string | null;
    /** Language to speak. */
    language?: string | null;
  }
  /** Handling of pictures. */
  interface ImageFields {
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
    /** Numbers the pictures, true by default. */
    use_image_id?: boolean | null;
  }
  /** A function that the client runs. */
  interface ToolFields {
    type?: "function" | null;
    function: FunctionFields;
  }
  /** A function that the model may call. */
  interface FunctionFields {
    name: string;
    /** The description of the function, for the model. */
    description?: string | null;
    /** JSON Schema of its arguments, of type object; without one the function takes no arguments. At most 16,384 bytes, and 131,072 bytes for all tools. */
    parameters?: Record<string, unknown> | null;
  }
  /** The one tool that the model must call. */
  interface ChosenTool {
    type?: "function" | null;
    function: ChosenFunction;
  }
  /** The name of a tool. */
  interface ChosenFunction {
    name: string;
  }
  /** Ends the session. */
  interface SessionClose {
    type: "session.close";
    /** Repeated in `session.closed` of the current dialect if it matches `[a-z0-9_]{1,64}`. */
    reason?: string | null;
  }
  /** Decoding settings. An absent field is the model's default; other keys are accepted and named in `unsupported_fields`. */
  interface ConfigFields {
    /** False: text only. */
    generate_audio?: boolean | null;
    ls_mode?: "explicit" | null;
    /** The number of units at the beginning in which the model always listens. */
    force_listen_count?: number | null;
    /** The most text tokens spoken in one unit. */
    max_new_speak_tokens_per_chunk?: number | null;
    decode_mode?: "greedy" | "sampling" | null;
    temperature?: number | null;
    top_k?: number | null;
    top_p?: number | null;
    text_repetition_penalty?: number | null;
    /** The number of latest tokens to which the repetition penalty applies. */
    text_repetition_window_size?: number | null;
    /** Penalty on ending the turn; above 1, the end is less likely. */
    length_penalty?: number | null;
    /** Factor on the probability of listening. */
    listen_prob_scale?: number | null;
    /** The model always listens if listening is among this many most likely choices. */
    listen_top_k?: number | null;
    tts_temperature?: number | null;
    chunk_ms?: 1000 | null;
    sample_rate?: 16000 | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
  }
  /** No slot was free at once. `position` counts from 1 over all kinds of session. */
  interface SessionQueued {
    type: "session.queued";
    position: number;
    estimated_wait_s: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** The session is still waiting; sent every 3 s. */
  interface SessionQueueUpdate {
    type: "session.queue_update";
    position: number;
    estimated_wait_s: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** A slot is assigned: the session may be configured. */
  interface SessionQueueDone {
    type: "session.queue_done";
  }
  /** The session takes turns. */
  interface ChatCreated {
    type: "session.created";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    session_id: string;
    mode: "turn_based";
    /** Tokens of the settings: system prompt and voice. */
    usage: TokenUsage;
    /** Paths in `payload` of fields that were accepted but have no effect. */
    unsupported_fields?: Array<string>;
    /** The name of the recording of this session. */
    recording_session_id?: string;
    resume?: ResumeOffer;
  }
  /** Figures of an event; unknown ones are absent. Times are in milliseconds, lengths in tokens. */
  interface Metrics {
    /** Tokens in the context now. */
    kv_cache_length?: number;
    /** The most tokens that the context can hold. */
    n_past_max?: number;
    /** Tokens of the settings: system prompt and voice. */
    prompt_length?: number;
    queue_ms?: number;
    prefill_ms?: number;
    generate_ms?: number;
    cost_llm_ms?: number;
    cost_tts_ms?: number;
    cost_token2wav_ms?: number;
    /** The time from the completion of the unit in the adapter until its answer was sent. */
    wall_clock_ms?: number;
    n_tokens?: number;
    n_tts_tokens?: number;
    vision_slices?: number;
    vision_tokens?: number;
    /** Zeros added to complete the unit. */
    padded_samples?: number;
    /** Samples that had to be clipped to [-1, 1]. */
    clipped_samples?: number;
    /** The unit came too late and was not given to the model. */
    dropped?: boolean;
    /** Dropped units of the session so far. */
    dropped_total?: number;
    /** Pictures that were ignored, because the session has no video. */
    ignored_frames?: number;
    /** The server added this unit of silence to give the model time to answer. */
    injected_silence?: boolean;
  }
  /** Tokens consumed and produced, of a unit or of the session so far. */
  interface TokenUsage {
    total_tokens: number;
    input_tokens: number;
    output_tokens: number;
    input_token_details: InputTokenDetails;
    output_token_details: OutputTokenDetails;
  }
  /** Input tokens by kind. */
  interface InputTokenDetails {
    text_tokens: number;
    audio_tokens: number;
    vision_tokens: number;
    /** Tokens whose context was found in the prefix cache instead of being computed again. */
    cached_tokens: number;
  }
  /** Output tokens by kind. */
  interface OutputTokenDetails {
    text_tokens: number;
    audio_tokens: number;
  }
  /** The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the number of the last event that came, within `window_s` seconds of the loss. */
  interface ResumeOffer {
    /** Valid once; `session.resumed` has the next token. */
    token: string;
    window_s: number;
  }
  /** The first event of a resumed connection, before all missed events. It has no number itself. */
  interface SessionResumed {
    type: "session.resumed";
    resume: ResumeOffer;
    /** The `last_event` that the client sent; the next event has the number after it. */
    last_event: number;
    /** The number of messages of the client that the session received; later ones were lost. */
    received: number;
  }
  /** The next piece of the answer as text. */
  interface ReplyText {
    type: "response.output.delta";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    kind: "text";
    session_id: string;
    input_id: string;
    /** The same in all events of one answer. */
    response_id: string;
    text: string;
  }
  /** The next piece of the answer as audio. */
  interface ReplyAudio {
    type: "response.output.delta";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    kind: "audio";
    session_id: string;
    input_id: string;
    /** The same in all events of one answer. */
    response_id: string;
    /** Base64 of raw little-endian float32, mono, 24 kHz, within [-1, 1]. */
    audio: Base64;
  }
  /** The next piece of the model's thinking before it answers: no part of the answer, and never spoken. */
  interface ReplyThinking {
    type: "response.output.delta";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    kind: "thinking";
    session_id: string;
    input_id: string;
    /** The same in all events of one answer. */
    response_id: string;
    text: string;
  }
  /** The next piece of a call to one of the `tools`. */
  interface ReplyCall {
    type: "response.output.delta";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    kind: "tool_call";
    session_id: string;
    input_id: string;
    /** The same in all events of one answer. */
    response_id: string;
    tool_call: CallPiece;
  }
  /** A piece of a call. */
  interface CallPiece {
    /** The index of the call in the answer, from 0. */
    index: number;
    id: string;
    name: string;
    /** The next part of the arguments; all parts together are a JSON object. */
    arguments: string;
    /** Whether the arguments are complete. A call that is never complete must not be carried out. */
    complete: boolean;
  }
  /** The end of an answer. */
  interface ResponseDone {
    type: "response.done";
    metrics: Metrics;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    session_id: string;
    response_id: string;
    input_id: string;
    /** The whole text of the answer. */
    text: string;
    /** `length`: the answer reached `max_new_tokens`, or the context is full. */
    reason: "cancelled" | "error" | "length" | "turn_end";
    /** Tokens of this turn. */
    usage: TokenUsage;
    /** Paths in `input` of fields that were accepted but have no effect. */
    unsupported_fields?: Array<string>;
    /** The whole audio of a spoken answer that was not streamed. */
    audio?: Base64;
    /** The whole thinking of the model; absent if there is none. */
    thinking?: string;
    /** The complete calls; absent if there are none. */
    tool_calls?: Array<DoneCall>;
  }
  /** A call that is complete, as a message of the assistant has it in a later turn. */
  interface DoneCall {
    id: string;
    type: "function";
    function: DoneFunction;
  }
  /** A called function with its arguments. */
  interface DoneFunction {
    name: string;
    /** A JSON object. */
    arguments: string;
  }
  /** The last event of a session. `session_id` and `usage` are absent before `session.created`. */
  interface SessionClosed {
    type: "session.closed";
    /** After `session.close`: the client's reason, `client_closed` if that does not match the pattern, or `user_stop` by default. Otherwise `timeout`, `context_full`, `server_shutdown`, `backend_error` or `slow_consumer`. */
    reason: string;
    session_id?: string;
    usage?: TokenUsage;
    diagnostic?: Diagnostic;
  }
  /** The reason for the end of the session. */
  interface Diagnostic {
    /** A sentence for people. */
    message: string;
    /** The id by which the operator of the server finds the session. */
    trace_id?: string;
  }
  /** An event was refused, a unit failed, or the session ends. */
  interface ErrorEvent {
    type: "error";
    error: ErrorBody;
  }
  /** An error. */
  interface ErrorBody {
    code: ErrorCode;
    /** For people: names the field, the expected and the actual value. */
    message: string;
    /** The side that caused the error. */
    type: "client_error" | "server_error";
    /** Path of the field at fault, from the root of the event. */
    param?: string;
    /** The append at fault. */
    input_id?: string;
    /** The id by which the operator of the server finds the session. */
    trace_id?: string;
  }
  /** Error codes, for programs. */
  type ErrorCode = "inference_error" | "init_timeout" | "invalid_event" | "invalid_frame" | "invalid_json" | "invalid_payload" | "missing_field" | "not_ready" | "paused" | "queue_cancelled" | "queue_full" | "queue_timeout" | "quota_exceeded" | "rate_limited" | "resume_failed" | "service_unavailable" | "slow_consumer" | "unauthorized" | "unknown_event" | "unsupported_mode" | "unsupported_protocol" | "worker_busy" | "worker_connect_failed";
}

/** The earlier dialect of /v1/realtime. */
export namespace Earlier {
  /** Events of a client. */
  type ClientEvent = SessionUpdate | AudioAppend | SessionClose;
  /** Events of the server. */
  type ServerEvent = SessionQueued | SessionQueueUpdate | SessionQueueDone | SessionCreated | SessionResumed | AudioDelta | Listen | SessionClosed | ErrorEvent;
  /** Opens the session. */
  interface SessionUpdate {
    type: "session.update";
    session: SessionFields;
    /** The trace that the client works in, as the headers of W3C Trace Context have it. The session's spans link to it. An invalid one is ignored. */
    trace_context?: unknown;
  }
  /** The settings of a session. */
  interface SessionFields {
    /** Base64 of a WAV file or of raw float32 mono at 16 kHz, 0.5 s to 30 s, with or without `data:...;base64,` before it. */
    ref_audio_base64?: Base64 | null;
    /** Alias of `ref_audio_base64`. */
    ref_audio?: Base64 | null;
    /** The reference voice of the speech, in the same form; by default `ref_audio_base64`. */
    tts_ref_audio_base64?: Base64 | null;
    /** Alias of `tts_ref_audio_base64`. */
    tts_ref_audio?: Base64 | null;
    /** Id of a voice registered with the server; a leading directory and a file extension are removed. */
    ref_audio_path?: string | null;
    /** The system prompt; empty for none. */
    instructions: string;
    voice_config?: ConfigFields | null;
    /** Alias of `voice_config`. */
    config?: ConfigFields | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
  }
  /** A piece of microphone audio, with pictures of the camera. Audio is required without `force_listen`. */
  interface AudioAppend {
    type: "input_audio_buffer.append";
    /** Base64 of raw mono PCM at 16 kHz, at most 60 s of it. */
    audio?: Base64 | null;
    /** Pictures during the audio, oldest first. Ignored in sessions without video. */
    video_frames?: Array<Base64 | PictureObject> | null;
    /** Barge-in: the model listens to this input and all waiting input before it; its open response ends. */
    force_listen?: boolean | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
    /** The client's id for this append, repeated in every answer to it; by default a new one. */
    input_id?: string | null;
    /** Samples: little-endian float32 in [-1, 1], the default, or little-endian int16. */
    format?: "f32" | "pcm16" | null;
    /** Hz of the audio sent. */
    sample_rate?: 16000 | null;
    /** Alias of `sample_rate`. */
    sample_rate_hz?: 16000 | null;
    /** The trace that the client works in, as the headers of W3C Trace Context have it. The session's spans link to it. An invalid one is ignored. */
    trace_context?: unknown;
  }
  /** The long spelling of a picture. */
  interface PictureObject {
    /** Base64 of a JPEG, PNG or WebP file of at most 1 MiB and 4 megapixels. */
    data?: Base64 | null;
    /** Alias of `data`. */
    base64?: Base64 | null;
  }
  /** Ends the session. */
  interface SessionClose {
    type: "session.close";
    /** Repeated in `session.closed` of the current dialect if it matches `[a-z0-9_]{1,64}`. */
    reason?: string | null;
  }
  /** Decoding settings. An absent field is the model's default; other keys are accepted and named in `unsupported_fields`. */
  interface ConfigFields {
    /** False: text only. */
    generate_audio?: boolean | null;
    ls_mode?: "explicit" | null;
    /** The number of units at the beginning in which the model always listens. */
    force_listen_count?: number | null;
    /** The most text tokens spoken in one unit. */
    max_new_speak_tokens_per_chunk?: number | null;
    decode_mode?: "greedy" | "sampling" | null;
    temperature?: number | null;
    top_k?: number | null;
    top_p?: number | null;
    text_repetition_penalty?: number | null;
    /** The number of latest tokens to which the repetition penalty applies. */
    text_repetition_window_size?: number | null;
    /** Penalty on ending the turn; above 1, the end is less likely. */
    length_penalty?: number | null;
    /** Factor on the probability of listening. */
    listen_prob_scale?: number | null;
    /** The model always listens if listening is among this many most likely choices. */
    listen_top_k?: number | null;
    tts_temperature?: number | null;
    chunk_ms?: 1000 | null;
    sample_rate?: 16000 | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
  }
  /** No slot was free at once. `position` counts from 1 over all kinds of session. */
  interface SessionQueued {
    type: "session.queued";
    position: number;
    estimated_wait_s: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** The session is still waiting; sent every 3 s. */
  interface SessionQueueUpdate {
    type: "session.queue_update";
    position: number;
    estimated_wait_s: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** A slot is assigned: the session may be configured. */
  interface SessionQueueDone {
    type: "session.queue_done";
  }
  /** The session is configured and takes input. */
  interface SessionCreated {
    type: "session.created";
    session_id: string;
    /** Tokens of the settings: system prompt and voice. */
    prompt_length: number;
    /** The same tokens by kind. */
    usage: TokenUsage;
    /** The name of the recording of this session. */
    recording_session_id?: string;
    /** Paths in `session` of fields that were accepted but have no effect. */
    unsupported_fields?: Array<string>;
    resume?: ResumeOffer;
  }
  /** Tokens consumed and produced, of a unit or of the session so far. */
  interface TokenUsage {
    total_tokens: number;
    input_tokens: number;
    output_tokens: number;
    input_token_details: InputTokenDetails;
    output_token_details: OutputTokenDetails;
  }
  /** Input tokens by kind. */
  interface InputTokenDetails {
    text_tokens: number;
    audio_tokens: number;
    vision_tokens: number;
    /** Tokens whose context was found in the prefix cache instead of being computed again. */
    cached_tokens: number;
  }
  /** Output tokens by kind. */
  interface OutputTokenDetails {
    text_tokens: number;
    audio_tokens: number;
  }
  /** The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the number of the last event that came, within `window_s` seconds of the loss. */
  interface ResumeOffer {
    /** Valid once; `session.resumed` has the next token. */
    token: string;
    window_s: number;
  }
  /** The first event of a resumed connection, before all missed events. It has no number itself. */
  interface SessionResumed {
    type: "session.resumed";
    resume: ResumeOffer;
    /** The `last_event` that the client sent; the next event has the number after it. */
    last_event: number;
    /** The number of messages of the client that the session received; later ones were lost. */
    received: number;
  }
  /** The text and audio of one unit together; each may be empty. */
  interface AudioDelta {
    type: "response.output_audio.delta";
    /** Tokens in the context now. */
    kv_cache_length: number;
    /** The append that completed the unit. */
    input_id: string;
    metrics: Metrics;
    /** The same in all events of one turn of the model. */
    response_id: string;
    text: string;
    /** The model has ended its turn. */
    end_of_turn: boolean;
    /** Base64 of raw little-endian float32, mono, 24 kHz, within [-1, 1]. */
    audio: Base64;
  }
  /** Figures of an event; unknown ones are absent. Times are in milliseconds, lengths in tokens. */
  interface Metrics {
    /** Tokens in the context now. */
    kv_cache_length?: number;
    /** The most tokens that the context can hold. */
    n_past_max?: number;
    /** Tokens of the settings: system prompt and voice. */
    prompt_length?: number;
    queue_ms?: number;
    prefill_ms?: number;
    generate_ms?: number;
    cost_llm_ms?: number;
    cost_tts_ms?: number;
    cost_token2wav_ms?: number;
    /** The time from the completion of the unit in the adapter until its answer was sent. */
    wall_clock_ms?: number;
    n_tokens?: number;
    n_tts_tokens?: number;
    vision_slices?: number;
    vision_tokens?: number;
    /** Zeros added to complete the unit. */
    padded_samples?: number;
    /** Samples that had to be clipped to [-1, 1]. */
    clipped_samples?: number;
    /** The unit came too late and was not given to the model. */
    dropped?: boolean;
    /** Dropped units of the session so far. */
    dropped_total?: number;
    /** Pictures that were ignored, because the session has no video. */
    ignored_frames?: number;
    /** The server added this unit of silence to give the model time to answer. */
    injected_silence?: boolean;
  }
  /** The model listens; with `response_id` that response was interrupted. */
  interface Listen {
    type: "response.listen";
    /** Tokens in the context now. */
    kv_cache_length: number;
    /** The append that completed the unit. */
    input_id: string;
    metrics: Metrics;
    response_id?: string;
  }
  /** The last event of a session; `stopped`: the client ended the session. */
  interface SessionClosed {
    type: "session.closed";
    reason: "context_full" | "error" | "server_shutdown" | "slow_consumer" | "stopped" | "timeout";
    session_id: string;
  }
  /** An event was refused, a unit failed, or the session ends. */
  interface ErrorEvent {
    type: "error";
    error: ErrorBody;
  }
  /** An error. */
  interface ErrorBody {
    code: ErrorCode;
    /** For people: names the field, the expected and the actual value. */
    message: string;
    /** The side that caused the error. */
    type: "client_error" | "server_error";
    /** Path of the field at fault, from the root of the event. */
    param?: string;
    /** The append at fault. */
    input_id?: string;
    /** The id by which the operator of the server finds the session. */
    trace_id?: string;
  }
  /** Error codes, for programs. */
  type ErrorCode = "inference_error" | "init_timeout" | "invalid_event" | "invalid_frame" | "invalid_json" | "invalid_payload" | "missing_field" | "not_ready" | "paused" | "queue_cancelled" | "queue_full" | "queue_timeout" | "quota_exceeded" | "rate_limited" | "resume_failed" | "service_unavailable" | "slow_consumer" | "unauthorized" | "unknown_event" | "unsupported_mode" | "unsupported_protocol" | "worker_busy" | "worker_connect_failed";
}

/** The dialect of /ws/duplex. */
export namespace Duplex {
  /** Events of a client. */
  type ClientEvent = Prepare | AudioChunk | VideoFrame | Pause | Resume | Interrupt | Stop | ClientDiagnostic;
  /** Events of the server. */
  type ServerEvent = Queued | QueueUpdate | QueueDone | Prepared | SessionResumed | SessionMoved | Result | Paused | Resumed | Interrupted | Stopped | Timeout | Error;
  /** Opens the session. */
  interface Prepare {
    type: "prepare";
    /** Base64 of a WAV file or of raw float32 mono at 16 kHz, 0.5 s to 30 s, with or without `data:...;base64,` before it. */
    ref_audio_base64?: Base64 | null;
    /** Alias of `ref_audio_base64`. */
    ref_audio?: Base64 | null;
    /** The reference voice of the speech, in the same form; by default `ref_audio_base64`. */
    tts_ref_audio_base64?: Base64 | null;
    /** Alias of `tts_ref_audio_base64`. */
    tts_ref_audio?: Base64 | null;
    /** Id of a voice registered with the server; a leading directory and a file extension are removed. */
    ref_audio_path?: string | null;
    /** The system prompt. */
    system_prompt?: string | null;
    /** Alias of `system_prompt`. */
    prefix_system_prompt?: string | null;
    /** Alias of `system_prompt`. */
    instructions?: string | null;
    config?: ConfigFields | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
    /** Without effect: units are always finalised after their answer. */
    deferred_finalize?: boolean | null;
  }
  /** A piece of microphone audio in float32, with pictures of the camera. Audio is required without `force_listen`. */
  interface AudioChunk {
    type: "audio_chunk";
    /** Base64 of raw mono PCM at 16 kHz, at most 60 s of it. */
    audio_base64?: Base64 | null;
    /** Alias of `audio_base64`. */
    audio?: Base64 | null;
    /** Alias of `audio_base64`. */
    audio_data?: Base64 | null;
    /** Pictures during the audio, oldest first. Ignored in sessions without video. */
    frame_base64_list?: Array<Base64 | PictureObject> | null;
    /** Alias of `frame_base64_list`. */
    video_frames?: Array<Base64 | PictureObject> | null;
    /** Alias of `frame_base64_list`. */
    frames?: Array<Base64 | PictureObject> | null;
    /** A single picture. */
    video_frame?: Base64 | PictureObject | null;
    /** Alias of `video_frame`. */
    frame_base64?: Base64 | PictureObject | null;
    /** Barge-in: the model listens to this input and all waiting input before it; its open response ends. */
    force_listen?: boolean | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
  }
  /** The long spelling of a picture. */
  interface PictureObject {
    /** Base64 of a JPEG, PNG or WebP file of at most 1 MiB and 4 megapixels. */
    data?: Base64 | null;
    /** Alias of `data`. */
    base64?: Base64 | null;
  }
  /** A picture of the camera for the next unit. */
  interface VideoFrame {
    type: "video_frame";
    /** Base64 of a JPEG, PNG or WebP file of at most 1 MiB and 4 megapixels. */
    frame_base64?: Base64 | PictureObject | null;
    /** Alias of `frame_base64`. */
    frame?: Base64 | PictureObject | null;
    /** Alias of `frame_base64`. */
    image?: Base64 | PictureObject | null;
    /** Alias of `frame_base64`. */
    data?: Base64 | PictureObject | null;
    /** Alias of `frame_base64`. */
    video_frame?: Base64 | PictureObject | null;
  }
  /** Pauses the session: it takes no input, and keeps its slot. */
  interface Pause {
    type: "pause";
    /** Seconds after which the session ends, clamped to 1 to 300; 60 by default. */
    timeout?: number | null;
  }
  /** Ends the pause. */
  interface Resume {
    type: "resume";
  }
  /** Deprecated: the model listens in the next unit. */
  interface Interrupt {
    type: "interrupt";
  }
  /** Ends the session. */
  interface Stop {
    type: "stop";
  }
  /** Diagnostics of the client, with any fields, at most 64 KiB. The server logs their size and digest. */
  interface ClientDiagnostic {
    type: "client_diagnostic";
  }
  /** Decoding settings. An absent field is the model's default; other keys are accepted and named in `unsupported_fields`. */
  interface ConfigFields {
    /** False: text only. */
    generate_audio?: boolean | null;
    ls_mode?: "explicit" | null;
    /** The number of units at the beginning in which the model always listens. */
    force_listen_count?: number | null;
    /** The most text tokens spoken in one unit. */
    max_new_speak_tokens_per_chunk?: number | null;
    decode_mode?: "greedy" | "sampling" | null;
    temperature?: number | null;
    top_k?: number | null;
    top_p?: number | null;
    text_repetition_penalty?: number | null;
    /** The number of latest tokens to which the repetition penalty applies. */
    text_repetition_window_size?: number | null;
    /** Penalty on ending the turn; above 1, the end is less likely. */
    length_penalty?: number | null;
    /** Factor on the probability of listening. */
    listen_prob_scale?: number | null;
    /** The model always listens if listening is among this many most likely choices. */
    listen_top_k?: number | null;
    tts_temperature?: number | null;
    chunk_ms?: 1000 | null;
    sample_rate?: 16000 | null;
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
  }
  /** No slot was free at once. `position` counts from 1 over all kinds of session; `eta_seconds` equals `estimated_wait_s`. */
  interface Queued {
    type: "queued";
    position: number;
    estimated_wait_s: number;
    eta_seconds: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** The session is still waiting; sent every 3 s. */
  interface QueueUpdate {
    type: "queue_update";
    position: number;
    estimated_wait_s: number;
    eta_seconds: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** A slot is assigned: the client may send `prepare`. */
  interface QueueDone {
    type: "queue_done";
  }
  /** The session is configured and takes input. */
  interface Prepared {
    type: "prepared";
    /** Tokens of the settings: system prompt and voice. */
    prompt_length: number;
    session_id: string;
    /** The name of the recording of this session. */
    recording_session_id?: string;
    /** Paths in `prepare` of fields that were accepted but have no effect. */
    unsupported_fields?: Array<string>;
    resume?: ResumeOffer;
  }
  /** The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the number of the last event that came, within `window_s` seconds of the loss. */
  interface ResumeOffer {
    /** Valid once; `session.resumed` has the next token. */
    token: string;
    window_s: number;
  }
  /** The first event of a resumed connection, before all missed events. It has no number itself. */
  interface SessionResumed {
    type: "session.resumed";
    resume: ResumeOffer;
    /** The `last_event` that the client sent; the next event has the number after it. */
    last_event: number;
    /** The number of messages of the client that the session received; later ones were lost. */
    received: number;
  }
  /** Another worker continues the session of a lost or draining worker. No input or output is lost. */
  interface SessionMoved {
    type: "session.moved";
    /** Seconds in which no unit was answered. */
    pause_s: number;
  }
  /** The single answer to a unit. Times are in milliseconds, 0 for phases that did not run. */
  interface Result {
    type: "result";
    is_listen: boolean;
    text: string;
    /** The model has ended its turn. */
    end_of_turn: boolean;
    /** The number of the unit, from 1. */
    current_time: number;
    /** Tokens in the context now. */
    kv_cache_length: number;
    cost_llm_ms: number;
    cost_tts_prep_ms: number;
    cost_tts_ms: number;
    cost_token2wav_ms: number;
    cost_all_ms: number;
    prefill_ms: number;
    wall_clock_ms: number;
    n_tokens: number;
    n_tts_tokens: number;
    vision_slices: number;
    vision_tokens: number;
    /** The time of sending in Unix seconds. */
    server_send_ts: number;
    /** The unit came too late and was not given to the model. */
    dropped?: boolean;
    /** Dropped units of the session so far. */
    dropped_total?: number;
    /** Pictures that were ignored, because the session has no video. */
    ignored_frames?: number;
    /** Null while the model listens, else base64 of raw little-endian float32, mono, 24 kHz. */
    audio_data: Base64 | null;
  }
  /** The pause has begun; it may last `timeout` seconds. */
  interface Paused {
    type: "paused";
    timeout: number;
  }
  /** The pause has ended. */
  interface Resumed {
    type: "resumed";
  }
  /** The model will listen in the next unit. */
  interface Interrupted {
    type: "interrupted";
  }
  /** The last event of a session. */
  interface Stopped {
    type: "stopped";
    session_id: string;
    reason: "context_full" | "error" | "server_shutdown" | "user_stop";
  }
  /** The last event of a session with an expired timer; `reason` names the timer and its seconds. */
  interface Timeout {
    type: "timeout";
    reason: string;
  }
  /** An event was refused, a unit failed, or the session ends. `message` repeats `error`. */
  interface Error {
    type: "error";
    error: string;
    code: ErrorCode;
    message: string;
    /** The id by which the operator of the server finds the session. */
    trace_id?: string;
  }
  /** Error codes, for programs. */
  type ErrorCode = "inference_error" | "init_timeout" | "invalid_event" | "invalid_frame" | "invalid_json" | "invalid_payload" | "missing_field" | "not_ready" | "paused" | "queue_cancelled" | "queue_full" | "queue_timeout" | "quota_exceeded" | "rate_limited" | "resume_failed" | "service_unavailable" | "slow_consumer" | "unauthorized" | "unknown_event" | "unsupported_mode" | "unsupported_protocol" | "worker_busy" | "worker_connect_failed";
}

/** The dialect of /ws/chat. */
export namespace Chat {
  /** Events of a client. */
  type ClientEvent = ChatRequest;
  /** Events of the server. */
  type ServerEvent = Queued | QueueUpdate | QueueDone | PrefillDone | SessionResumed | Chunk | Done | Error;
  /** The only event of the client, which it sends as soon as it is connected. A field `type` is ignored. */
  interface ChatRequest {
    /** The whole conversation so far, with at least one message of the user. */
    messages: Array<ChatMessage>;
    /** True by default: the answer comes piece by piece. False: it comes at once. */
    streaming?: boolean | null;
    generation?: GenerationFields | null;
    tts?: SpeechFields | null;
    /** True: the answer is spoken, as with `tts.enabled`, and the model is told so. */
    use_tts_template?: boolean | null;
    image?: ImageFields | null;
    /** True: pictures and sound are synchronous; the model gets videos with their sound. False by default. */
    omni_mode?: boolean | null;
    /** The model may think before it answers, if it can; its thinking is no part of the answer. */
    enable_thinking?: boolean | null;
    /** Functions that the model may call, with different names. */
    tools?: Array<ToolFields> | null;
    /** `auto` by default. `required`, or a named tool, forces a call with arguments that match the schema. */
    tool_choice?: "auto" | "none" | "required" | ChosenTool | null;
    /** True by default. False: at most one call in the answer. */
    parallel_tool_calls?: boolean | null;
  }
  /** A message of one side. */
  interface ChatMessage {
    role: "assistant" | "system" | "tool" | "user";
    /** A text, or parts in their order; at most 4 pictures in one message. Only a message with `tool_calls` may have no content; the content of a message of a tool is a text. */
    content?: string | Array<TextPart | ImagePart | AudioPart | VideoPart> | null;
    /** For role `assistant`: the calls that the model made. */
    tool_calls?: Array<CallFields> | null;
    /** For role `tool`: the id of the call, in an earlier message, whose result this message is. */
    tool_call_id?: string | null;
  }
  /** A text. */
  interface TextPart {
    type: "text";
    text: string;
  }
  /** A picture. */
  interface ImagePart {
    type: "image";
    /** Base64 of a JPEG, PNG or WebP file of at most 1 MiB and 4 megapixels. */
    data: Base64;
  }
  /** A clip of audio. */
  interface AudioPart {
    type: "audio";
    /** Base64 of a WAV file or of raw little-endian float32, mono; at most 300 s in all clips of a request together. */
    data: Base64;
    /** Hz of raw samples, 16000 by default. A WAV file says it itself. */
    sample_rate?: number | null;
  }
  /** A video: its frames and, with `omni_mode`, its sound between them. */
  interface VideoPart {
    type: "video";
    /** Base64 of an MP4, MOV, WebM or Matroska file of at most 4096 x 4096 pixels. At most 4 videos in a request, of 10 minutes all together. */
    data: Base64;
    /** Frames used of each second, 1 by default; those after the first are joined into one picture. */
    stack_frames?: number | null;
  }
  /** A call that the model made. */
  interface CallFields {
    id: string;
    type?: "function" | null;
    function: CalledFunction;
  }
  /** A called function with its arguments. */
  interface CalledFunction {
    name: string;
    /** A JSON object, at most 65,536 bytes. */
    arguments: string;
  }
  /** Sampling of the answer's tokens. */
  interface GenerationFields {
    /** The most tokens of the answer, 512 by default. */
    max_new_tokens?: number | null;
    /** 0.7 by default; 0 always takes the most likely token. */
    temperature?: number | null;
    /** 0.8 by default. */
    top_p?: number | null;
    /** 1.0 by default; above it answers get longer, below it shorter. */
    length_penalty?: number | null;
  }
  /** Speech of the answer. */
  interface SpeechFields {
    enabled?: boolean | null;
    mode?: "audio_assistant" | "audio_roleplay" | "default" | "omni" | "voice_cloning" | null;
    /** The voice to speak with. */
    ref_audio_data?: Base64 | null;
    /** Id of a voice registered with the server, without effect beside `ref_audio_data`; a leading directory and a file extension are removed. */
    ref_audio_path?: string | null;
    /** Language to speak. */
    language?: string | null;
  }
  /** Handling of pictures. */
  interface ImageFields {
    /** Into how many slices a picture may be cut; 1 by default. */
    max_slice_nums?: number | null;
    /** Numbers the pictures, true by default. */
    use_image_id?: boolean | null;
  }
  /** A function that the client runs. */
  interface ToolFields {
    type?: "function" | null;
    function: FunctionFields;
  }
  /** A function that the model may call. */
  interface FunctionFields {
    name: string;
    /** The description of the function, for the model. */
    description?: string | null;
    /** JSON Schema of its arguments, of type object; without one the function takes no arguments. At most 16,384 bytes, and 131,072 bytes for all tools. */
    parameters?: Record<string, unknown> | null;
  }
  /** The one tool that the model must call. */
  interface ChosenTool {
    type?: "function" | null;
    function: ChosenFunction;
  }
  /** The name of a tool. */
  interface ChosenFunction {
    name: string;
  }
  /** No slot was free at once. `position` counts from 1 over all kinds of session; `eta_seconds` equals `estimated_wait_s`. */
  interface Queued {
    type: "queued";
    position: number;
    estimated_wait_s: number;
    eta_seconds: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** The session is still waiting; sent every 3 s. */
  interface QueueUpdate {
    type: "queue_update";
    position: number;
    estimated_wait_s: number;
    eta_seconds: number;
    /** Whether the wait is only a guess, because too few sessions have ended so far. */
    estimate_is_guess: boolean;
    ticket_id: string;
    queue_length: number;
  }
  /** A slot is assigned, after a wait. */
  interface QueueDone {
    type: "queue_done";
  }
  /** The model has read all messages. */
  interface PrefillDone {
    type: "prefill_done";
    input_tokens: number;
    resume?: ResumeOffer;
  }
  /** The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the number of the last event that came, within `window_s` seconds of the loss. */
  interface ResumeOffer {
    /** Valid once; `session.resumed` has the next token. */
    token: string;
    window_s: number;
  }
  /** The first event of a resumed connection, before all missed events. It has no number itself. */
  interface SessionResumed {
    type: "session.resumed";
    resume: ResumeOffer;
    /** The `last_event` that the client sent; the next event has the number after it. */
    last_event: number;
    /** The number of messages of the client that the session received; later ones were lost. */
    received: number;
  }
  /** A piece of a streamed answer. */
  interface Chunk {
    type: "chunk";
    text_delta: string;
    /** Null without audio, else base64 of raw little-endian float32, mono, 24 kHz. */
    audio_data: Base64 | null;
    /** The next piece of the model's thinking before it answers; absent without one. */
    thinking_delta?: string;
    /** The next piece of a call to one of the `tools`; absent without one. */
    tool_call?: CallPiece;
  }
  /** A piece of a call. */
  interface CallPiece {
    /** The index of the call in the answer, from 0. */
    index: number;
    id: string;
    name: string;
    /** The next part of the arguments; all parts together are a JSON object. */
    arguments: string;
    /** Whether the arguments are complete. A call that is never complete must not be carried out. */
    complete: boolean;
  }
  /** The whole answer. Then the connection closes. */
  interface Done {
    type: "done";
    text: string;
    /** Tokens of the text, including the token that ends it. */
    generated_tokens: number;
    input_tokens: number;
    /** The whole audio of an answer that is not streamed, else null: the chunks had the audio. */
    audio_data: Base64 | null;
    /** The name of the recording of this session. */
    recording_session_id: string | null;
    /** Paths in the request of fields that were accepted but have no effect. */
    unsupported_fields?: Array<string>;
    /** The whole thinking of the model; absent if there is none. */
    thinking?: string;
    /** The complete calls; absent if there are none. */
    tool_calls?: Array<DoneCall>;
  }
  /** A call that is complete, as a message of the assistant has it in a later turn. */
  interface DoneCall {
    id: string;
    type: "function";
    function: DoneFunction;
  }
  /** A called function with its arguments. */
  interface DoneFunction {
    name: string;
    /** A JSON object. */
    arguments: string;
  }
  /** The request was refused, or failed. Then the connection closes. */
  interface Error {
    type: "error";
    /** For people: names the field, the expected and the actual value. */
    error: string;
    code: ErrorCode;
    /** The id by which the operator of the server finds the session. */
    trace_id?: string;
  }
  /** Error codes, for programs. */
  type ErrorCode = "inference_error" | "init_timeout" | "invalid_event" | "invalid_frame" | "invalid_json" | "invalid_payload" | "missing_field" | "not_ready" | "paused" | "queue_cancelled" | "queue_full" | "queue_timeout" | "quota_exceeded" | "rate_limited" | "resume_failed" | "service_unavailable" | "slow_consumer" | "unauthorized" | "unknown_event" | "unsupported_mode" | "unsupported_protocol" | "worker_busy" | "worker_connect_failed";
}

/** The dialect of /v1/transcription. */
export namespace Transcription {
  /** Events of a client. */
  type ClientEvent = SessionUpdate | AudioAppend | AudioCommit;
  /** Events of the server. */
  type ServerEvent = SessionCreated | SessionResumed | Delta | Done | Error;
  /** Choose the model of later utterances. No event confirms it; other fields are ignored. */
  interface SessionUpdate {
    type: "session.update";
    /** A model of `/v1/models`. */
    model: string;
    /** The trace that the client works in, as the headers of W3C Trace Context have it. The session's spans link to it. An invalid one is ignored. */
    trace_context?: unknown;
  }
  /** Audio for the open utterance, or for the next one if none is open. */
  interface AudioAppend {
    type: "input_audio_buffer.append";
    /** Base64 of little-endian int16, mono, 16 kHz. */
    audio: Base64;
    /** The trace that the client works in, as the headers of W3C Trace Context have it. The session's spans link to it. An invalid one is ignored. */
    trace_context?: unknown;
  }
  /** Begin an utterance, or with `final` end it. */
  interface AudioCommit {
    type: "input_audio_buffer.commit";
    /** Also a word in upper or lower case: true, yes, on or 1; false, no, off or 0. */
    final?: boolean | number | string;
  }
  /** The first event, sent before the server reads any event. */
  interface SessionCreated {
    type: "session.created";
    id: string;
    /** Unix seconds. */
    created: number;
    /** Only on `/v1/realtime?intent=transcription`, where a client may speak OpenAI's protocol. */
    event_id?: string;
    /** Only where `event_id` is. */
    session?: Record<string, unknown>;
    resume?: ResumeOffer;
  }
  /** The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the number of the last event that came, within `window_s` seconds of the loss. */
  interface ResumeOffer {
    /** Valid once; `session.resumed` has the next token. */
    token: string;
    window_s: number;
  }
  /** The first event of a resumed connection, before all missed events. It has no number itself. */
  interface SessionResumed {
    type: "session.resumed";
    resume: ResumeOffer;
    /** The `last_event` that the client sent; the next event has the number after it. */
    last_event: number;
    /** The number of messages of the client that the session received; later ones were lost. */
    received: number;
  }
  /** Further text of the utterance. */
  interface Delta {
    type: "transcription.delta";
    delta: string;
  }
  /** The utterance is complete. */
  interface Done {
    type: "transcription.done";
    /** All its deltas, joined. */
    text: string;
    usage: Usage;
  }
  /** Tokens of an utterance. */
  interface Usage {
    /** Input tokens of the first step; later input is not counted. */
    prompt_tokens: number;
    /** The sum of the other two. */
    total_tokens: number;
    /** All sampled tokens, including those without text. */
    completion_tokens: number;
    prompt_tokens_details: null;
    completion_tokens_details: null;
  }
  /** An event was refused, or an utterance failed; the connection stays open unless the table of codes says otherwise. */
  interface Error {
    type: "error";
    /** A text for people. */
    error: string;
    code: Code;
  }
  /** Error codes, for programs. */
  type Code = "buffer_full" | "context_full" | "idle_timeout" | "invalid_audio" | "invalid_event" | "invalid_frame" | "invalid_json" | "model_not_found" | "model_not_validated" | "processing_error" | "queue_full" | "quota_exceeded" | "rate_limited" | "resume_failed" | "service_unavailable" | "slow_consumer" | "unauthorized" | "unknown_event" | "unsupported_mode";
}

/** The dialect of /v1/live/sessions. */
export namespace Live {
  /** Events of a client. */
  type ClientEvent = SessionStart | SessionUpdate | AudioAppend | AudioMute | AudioUnmute | InstructionsAppend | ThinkingAppend | CommentaryAppend | SessionClose;
  /** Events of the server. */
  type ServerEvent = SessionStarted | SessionResumed | SessionUpdated | OutputAudioDelta | OutputTranscriptDelta | InputTranscriptDelta | AudioMuted | AudioUnmuted | InstructionsAppended | ThinkingAppended | CommentaryAppended | UsageUpdated | SessionClosed | Info | Error;
  /** Begin the session. Until `session.started`, a client may only send `session.close` after it. */
  interface SessionStart {
    type: "session.start";
    session: SessionConfig;
    /** The client's id of this event; events that answer it have it as `client_event_id`. */
    event_id?: string | null;
  }
  /** The settings of a session; only `delegation` can be changed later. */
  interface SessionConfig {
    /** A model of `/v1/models`. */
    model: string;
    /** The system prompt; absent or blank, the default of the server. */
    instructions?: string | null;
    audio?: AudioConfig | null;
    delegation?: DelegationConfig | null;
    /** The messages before the session, oldest first. */
    input?: Array<DeveloperMessage | UserMessage | AssistantMessage> | null;
    /** Only false: sessions cannot be forked. */
    store?: boolean | null;
    /** Only an empty list: no service makes decisions here. */
    triggers?: Array<unknown> | null;
    /** Only null: it belongs to WebRTC. */
    client?: null;
    /** Returned as given, without effect. */
    safety_identifier?: string | null;
  }
  /** The audio format and the voice. */
  interface AudioConfig {
    /** The format of both directions; PCM at 24 kHz by default. */
    format?: PcmFormat | PcmuFormat | PcmaFormat | null;
    output?: OutputConfig | null;
  }
  /** Little-endian int16. */
  interface PcmFormat {
    type: "audio/pcm";
    rate: 16000 | 24000;
  }
  /** G.711 mu-law, the law of North America and Japan. */
  interface PcmuFormat {
    type: "audio/pcmu";
    rate: 8000;
  }
  /** G.711 A-law, the law of all other countries. */
  interface PcmaFormat {
    type: "audio/pcma";
    rate: 8000;
  }
  /** The voice of the model's audio. */
  interface OutputConfig {
    /** A registered voice, or one of OpenAI's names, which stand for the model's own voice. */
    voice?: string | VoiceId | null;
  }
  /** A voice that is registered with the server. */
  interface VoiceId {
    id: string;
  }
  /** Delegation settings. No model here delegates, as an `info` event says. */
  interface DelegationConfig {
    type: "client" | "responses";
    acknowledgement_delay_ms?: number | null;
    /** Settings of the delegate; returned as given, without effect. */
    responses?: Record<string, unknown> | null;
  }
  /** A message of the application. */
  interface DeveloperMessage {
    role: "developer";
    id?: string | null;
    status?: "completed" | "incomplete" | null;
    type?: "message" | null;
    /** Exactly one part. */
    content: Array<InputText>;
  }
  /** A written text. */
  interface InputText {
    text: string;
    type?: "input_text" | null;
  }
  /** A message of the user. */
  interface UserMessage {
    role: "user";
    id?: string | null;
    status?: "completed" | "incomplete" | null;
    type?: "message" | null;
    /** Exactly one part. */
    content: Array<InputText>;
  }
  /** A message of the model. */
  interface AssistantMessage {
    role: "assistant";
    id?: string | null;
    status?: "completed" | "incomplete" | null;
    type?: "message" | null;
    /** Exactly one part. */
    content: Array<OutputText>;
  }
  /** A text that the model said. */
  interface OutputText {
    text: string;
    type?: "output_text" | "text" | null;
  }
  /** Change the delegation settings. */
  interface SessionUpdate {
    type: "session.update";
    session: SessionChanges;
    /** The client's id of this event; events that answer it have it as `client_event_id`. */
    event_id?: string | null;
  }
  /** Changes of a running session. */
  interface SessionChanges {
    delegation?: DelegationConfig | null;
    /** Only an empty list: no service makes decisions here. */
    triggers?: Array<unknown> | null;
  }
  /** Audio of the microphone, sent continuously; no event answers it. */
  interface AudioAppend {
    type: "session.input_audio.append";
    /** Base64 of raw mono audio in the format of the session; it may be cut anywhere. */
    audio: Base64;
    /** The client's id of this event; events that answer it have it as `client_event_id`. */
    event_id?: string | null;
  }
  /** Mute the input: the model gets silence in place of appended audio. */
  interface AudioMute {
    type: "session.input_audio.mute";
    /** The client's id of this event; events that answer it have it as `client_event_id`. */
    event_id?: string | null;
  }
  /** Unmute the input. */
  interface AudioUnmute {
    type: "session.input_audio.unmute";
    /** The client's id of this event; events that answer it have it as `client_event_id`. */
    event_id?: string | null;
  }
  /** Instructions that the model reads before its next unit. Some models cannot read any. */
  interface InstructionsAppend {
    type: "session.instructions.append";
    /** At most 2,000 bytes of UTF-8: the protocol allows 500 tokens, which are about as many. */
    content: string;
    /** Only null: nothing is delegated here. */
    delegation_id?: null;
    /** The client's id of this event; events that answer it have it as `client_event_id`. */
    event_id?: string | null;
  }
  /** A text that the model is to know and not to speak about. It reads the text before its next unit; some models cannot read any. */
  interface ThinkingAppend {
    type: "session.thinking.append";
    /** At most 2,000 bytes of UTF-8: the protocol allows 500 tokens, which are about as many. */
    content: string;
    /** Only null: nothing is delegated here. */
    delegation_id?: null;
    /** The client's id of this event; events that answer it have it as `client_event_id`. */
    event_id?: string | null;
  }
  /** A text that the model is to speak about at once, even before the user speaks. Some models cannot read any. */
  interface CommentaryAppend {
    type: "session.commentary.append";
    /** At most 2,000 bytes of UTF-8: the protocol allows 500 tokens, which are about as many. */
    content: string;
    /** Only null: nothing is delegated here. */
    delegation_id?: null;
    /** The client's id of this event; events that answer it have it as `client_event_id`. */
    event_id?: string | null;
  }
  /** End the session after the current speech of the model, at the latest after 10 s. */
  interface SessionClose {
    type: "session.close";
    /** The client's id of this event; events that answer it have it as `client_event_id`. */
    event_id?: string | null;
  }
  /** The session has begun, and its output with it. */
  interface SessionStarted {
    type: "session.started";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    session: SessionResource;
    resume?: ResumeOffer;
  }
  /** The current settings of a session. */
  interface SessionResource {
    id: string;
    /** The latest end of the session, in Unix seconds. */
    expires_at: number;
    status: "active";
    model: string;
    instructions: string;
    audio: ResolvedAudio;
    delegation?: ResolvedDelegation;
    safety_identifier?: string;
  }
  /** The audio format and the voice. */
  interface ResolvedAudio {
    format: ResolvedFormat;
    output: ResolvedOutput;
  }
  /** The audio format of both directions. */
  interface ResolvedFormat {
    type: "audio/pcm" | "audio/pcma" | "audio/pcmu";
    rate: number;
  }
  /** The voice of the model's audio. */
  interface ResolvedOutput {
    voice?: string;
  }
  /** The receiver of the tasks that the model delegates. */
  interface ResolvedDelegation {
    type: "client" | "responses";
    acknowledgement_delay_ms?: number;
    /** As given. */
    responses?: Record<string, unknown>;
  }
  /** The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the number of the last event that came, within `window_s` seconds of the loss. */
  interface ResumeOffer {
    /** Valid once; `session.resumed` has the next token. */
    token: string;
    window_s: number;
  }
  /** The first event of a resumed connection, before all missed events. It has no number itself. */
  interface SessionResumed {
    type: "session.resumed";
    resume: ResumeOffer;
    /** The `last_event` that the client sent; the next event has the number after it. */
    last_event: number;
    /** The number of messages of the client that the session received; later ones were lost. */
    received: number;
  }
  /** The settings were changed; `session` has all of them. */
  interface SessionUpdated {
    type: "session.updated";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    session: SessionResource;
  }
  /** The next audio to play, sent continuously, silence included: 200 ms, or a unit of the model if that is shorter. */
  interface OutputAudioDelta {
    type: "session.output_audio.delta";
    /** Base64 of raw mono audio in the format of the session. */
    delta: Base64;
  }
  /** Further words of the model's speech. */
  interface OutputTranscriptDelta {
    type: "session.output_transcript.delta";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    delta: string;
    /** Position on the timeline of the session. */
    start_ms: number;
    /** Position on the timeline of the session. */
    end_ms: number;
  }
  /** The words of the user, transcribed after a pause; `start_ms` and `end_ms` count the user's audio. */
  interface InputTranscriptDelta {
    type: "session.input_transcript.delta";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    delta: string;
    /** Position on the timeline of the session. */
    start_ms: number;
    /** Position on the timeline of the session. */
    end_ms: number;
  }
  /** The input is muted: the model gets silence. */
  interface AudioMuted {
    type: "session.input_audio.muted";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
  }
  /** The input is unmuted: the model gets the user's audio. */
  interface AudioUnmuted {
    type: "session.input_audio.unmuted";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
  }
  /** The model has read the instructions. */
  interface InstructionsAppended {
    type: "session.instructions.appended";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    /** The beginning of the unit before which the model read it. */
    start_ms: number;
    /** Position on the timeline of the session. */
    end_ms: number;
  }
  /** The model has read the text. */
  interface ThinkingAppended {
    type: "session.thinking.appended";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    /** The beginning of the unit before which the model read it. */
    start_ms: number;
    /** Position on the timeline of the session. */
    end_ms: number;
  }
  /** The model has read the text. */
  interface CommentaryAppended {
    type: "session.commentary.appended";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    /** The beginning of the unit before which the model read it. */
    start_ms: number;
    /** Position on the timeline of the session. */
    end_ms: number;
  }
  /** The usage so far, sent every 5 s of the conversation and at its end. */
  interface UsageUpdated {
    type: "session.usage.updated";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    usage: LiveUsage;
    context_window?: ContextWindow;
  }
  /** Usage of the session so far. */
  interface LiveUsage {
    /** Seconds of audio that the model has heard. */
    seconds: number;
  }
  /** Use of the model's context. */
  interface ContextWindow {
    usage_ratio: number;
  }
  /** The last event of a session that had begun. */
  interface SessionClosed {
    type: "session.closed";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    reason: "close_requested" | "connection_lost" | "content" | "expired" | "remote_hangup";
    session: SessionResource;
    usage: LiveUsage;
  }
  /** A notice: `queued` while no slot is free; the others about settings that are replaced or have no effect. */
  interface Info {
    type: "info";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    code: "delegation_unused" | "instructions_unused" | "queued" | "voice_replaced";
    message: string;
  }
  /** An event was refused, a unit was lost, or the session ends. After a refused `session.start` the connection closes. */
  interface Error {
    type: "error";
    event_id: string;
    /** The `event_id` of the client's event that this event answers, if it had one. */
    client_event_id?: string;
    error: ErrorDetail;
  }
  /** An error. */
  interface ErrorDetail {
    /** The side that caused the error. */
    type: "invalid_request_error" | "server_error";
    code: Code;
    /** A text for people. */
    message: string;
    /** Path of the field at fault, from the root of the event. */
    param?: string;
    client_event_id?: string;
  }
  /** Error codes, for programs. */
  type Code = "context_window_full" | "inference_failed" | "insufficient_quota" | "invalid_api_key" | "invalid_frame" | "invalid_json" | "invalid_value" | "missing_required_parameter" | "model_not_found" | "queue_cancelled" | "queue_full" | "queue_timeout" | "rate_limit_exceeded" | "resume_failed" | "service_unavailable" | "session_already_started" | "session_not_started" | "slow_consumer" | "unknown_parameter" | "unsupported" | "unsupported_mode";
}

/** The dialect of /v1/realtime?model=. */
export namespace RealtimeGa {
  /** Events of a client. */
  type ClientEvent = SessionUpdate | AudioAppend | AudioCommit | AudioClear | OutputClear | ItemCreate | ItemRetrieve | ItemTruncate | ItemDelete | ResponseCreate | ResponseCancel;
  /** Events of the server. */
  type ServerEvent = SessionCreated | SessionResumed | SessionUpdated | ConversationCreated | ItemAdded | ItemDone | ItemRetrieved | ItemTruncated | ItemDeleted | AudioCommitted | AudioCleared | ResponseCreated | ResponseDone | OutputItemAdded | OutputItemDone | ContentPartAdded | ContentPartDone | AudioDelta | AudioDone | TranscriptDelta | TranscriptDone | TextDelta | TextDone | ArgumentsDelta | ArgumentsDone | SpeechStarted | SpeechStopped | TimeoutTriggered | TranscriptionDelta | TranscriptionCompleted | TranscriptionFailed | Error;
  /** Change the given settings, all of them or none. */
  interface SessionUpdate {
    type: "session.update";
    session: SessionFields;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** The settings of a session. */
  interface SessionFields {
    /** Only realtime: the type of a session cannot change. */
    type: "realtime" | "transcription";
    /** Only the model of the URL. */
    model?: string | null;
    /** Either audio, which comes with its transcript, or text. */
    output_modalities?: Array<"audio" | "text"> | null;
    /** The system prompt of the model; empty for none. */
    instructions?: string | null;
    audio?: AudioFields | null;
    include?: Array<"item.input_audio_transcription.logprobs"> | null;
    tools?: Array<FunctionTool> | null;
    tool_choice?: "auto" | "none" | "required" | ToolOfChoice | null;
    parallel_tool_calls?: boolean | null;
    max_output_tokens?: number | "inf" | null;
    truncation?: "auto" | "disabled" | RetentionRatio | null;
    prompt?: StoredPrompt | null;
    tracing?: "auto" | TracingConfig | null;
    reasoning?: Reasoning | null;
  }
  /** The audio settings of both directions. */
  interface AudioFields {
    input?: InputFields | null;
    output?: OutputFields | null;
  }
  /** The settings of the input audio. */
  interface InputFields {
    format?: PcmFormat | PcmuFormat | PcmaFormat | null;
    transcription?: TranscriptionConfig | null;
    noise_reduction?: NoiseReduction | null;
    turn_detection?: ServerVad | SemanticVad | null;
  }
  /** Little-endian int16. */
  interface PcmFormat {
    type: "audio/pcm";
    rate?: 24000 | null;
  }
  /** G.711 mu-law at 8 kHz, the law of North America and Japan. */
  interface PcmuFormat {
    type: "audio/pcmu";
    rate?: 8000 | null;
  }
  /** G.711 A-law at 8 kHz, the law of all other countries. */
  interface PcmaFormat {
    type: "audio/pcma";
    rate?: 8000 | null;
  }
  /** Transcription of the user's speech beside the conversation. Only `model` has an effect. */
  interface TranscriptionConfig {
    /** A model that transcribes; without it, or with one of OpenAI's names, any of them. */
    model?: string | null;
    language?: string | null;
    languages?: Array<string> | null;
    prompt?: string | null;
    keywords?: Array<string> | null;
    delay?: "high" | "low" | "medium" | "minimal" | "xhigh" | null;
  }
  /** The place of the microphone. It is accepted without effect. */
  interface NoiseReduction {
    type?: "far_field" | "near_field" | null;
    strength?: number | null;
  }
  /** Turn detection by the server, which detects the start and end of speech. */
  interface ServerVad {
    type: "server_vad";
    threshold?: number | null;
    prefix_padding_ms?: number | null;
    silence_duration_ms?: number | null;
    create_response?: boolean | null;
    interrupt_response?: boolean | null;
    idle_timeout_ms?: number | null;
  }
  /** The model itself decides when it speaks. */
  interface SemanticVad {
    type: "semantic_vad";
    eagerness?: "auto" | "high" | "low" | "medium" | null;
    create_response?: boolean | null;
    interrupt_response?: boolean | null;
  }
  /** The settings of the output audio. */
  interface OutputFields {
    format?: PcmFormat | PcmuFormat | PcmaFormat | null;
    /** A registered voice, or one of OpenAI's names, which stand for the model's own voice. */
    voice?: string | VoiceId | null;
    /** Only 1: the speed of speech cannot be changed. */
    speed?: number | null;
  }
  /** A voice that is registered with the server. */
  interface VoiceId {
    id: string;
  }
  /** A function of the client that the model may call. */
  interface FunctionTool {
    type: "function";
    name: string;
    description?: string | null;
    /** JSON Schema of its arguments. */
    parameters?: Record<string, unknown> | null;
  }
  /** The tool that the model has to call. */
  interface ToolOfChoice {
    type: "function";
    name: string;
  }
  /** The share of the conversation that remains when it is too long for the model. */
  interface RetentionRatio {
    type: "retention_ratio";
    retention_ratio: number;
    token_limits?: TokenLimits | null;
  }
  /** Limits of the remaining conversation. */
  interface TokenLimits {
    post_instructions?: number | null;
  }
  /** A prompt that OpenAI stores; none are stored here. */
  interface StoredPrompt {
    id: string;
    version?: string | null;
    variables?: Record<string, unknown> | null;
  }
  /** The name of a trace. It is accepted without effect: the operator of the server configures tracing. */
  interface TracingConfig {
    workflow_name?: string | null;
    group_id?: string | null;
    metadata?: Record<string, unknown> | null;
  }
  /** The effort of reasoning. It is accepted without effect. */
  interface Reasoning {
    effort?: "high" | "low" | "medium" | "minimal" | "xhigh" | null;
  }
  /** Audio of the microphone; no event answers it. */
  interface AudioAppend {
    type: "input_audio_buffer.append";
    /** Base64 of raw mono audio in the input format; it may be cut anywhere. */
    audio: Base64;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Commit appended audio as an item. */
  interface AudioCommit {
    type: "input_audio_buffer.commit";
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Clear appended audio. */
  interface AudioClear {
    type: "input_audio_buffer.clear";
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Drop the part of the answer that is not sent yet. No event answers it. */
  interface OutputClear {
    type: "output_audio_buffer.clear";
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Add an item to the conversation. */
  interface ItemCreate {
    type: "conversation.item.create";
    item: GivenMessage | GivenCall | GivenCallOutput;
    /** The item after which it is inserted: `root` for the front, absent for the end. */
    previous_item_id?: string | null;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** A message. */
  interface GivenMessage {
    type: "message";
    role: "assistant" | "system" | "user";
    /** Input parts of the user, text parts of the system, output parts of the assistant. */
    content: Array<InputTextPart | InputAudioPart | InputImagePart | OutputTextPart | OutputAudioPart>;
    /** An id of the client's; else the server makes one. */
    id?: string | null;
    object?: "realtime.item" | null;
    status?: "completed" | "in_progress" | "incomplete" | null;
  }
  /** Written text. */
  interface InputTextPart {
    type: "input_text";
    text: string;
  }
  /** Speech in the input format of the session. Without audio its transcript is used. */
  interface InputAudioPart {
    type: "input_audio";
    /** Base64. */
    audio?: Base64 | null;
    transcript?: string | null;
  }
  /** A picture of at most 1 MiB and 4 megapixels. */
  interface InputImagePart {
    type: "input_image";
    /** A `data:` URI with the base64 of a JPEG, PNG or WebP file. */
    image_url: Base64;
    /** Returned as given, without effect. */
    detail?: "auto" | "high" | "low" | null;
  }
  /** Text of the model. */
  interface OutputTextPart {
    type: "output_text";
    text: string;
  }
  /** Speech of the model, of which only the transcript is used. */
  interface OutputAudioPart {
    type: "output_audio";
    transcript: string;
    /** Only absent: clients cannot supply audio of the model. */
    audio?: string | null;
  }
  /** A call that the model made. */
  interface GivenCall {
    type: "function_call";
    name: string;
    /** A JSON object. */
    arguments: string;
    call_id?: string | null;
    /** An id of the client's; else the server makes one. */
    id?: string | null;
    object?: "realtime.item" | null;
    status?: "completed" | "in_progress" | "incomplete" | null;
  }
  /** The result of a call. */
  interface GivenCallOutput {
    type: "function_call_output";
    call_id: string;
    output: string;
    /** An id of the client's; else the server makes one. */
    id?: string | null;
    object?: "realtime.item" | null;
    status?: "completed" | "in_progress" | "incomplete" | null;
  }
  /** Retrieve an item with its audio. */
  interface ItemRetrieve {
    type: "conversation.item.retrieve";
    item_id: string;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Cut an answer to the part that the user has heard. */
  interface ItemTruncate {
    type: "conversation.item.truncate";
    item_id: string;
    content_index: number;
    audio_end_ms: number;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Delete an item. */
  interface ItemDelete {
    type: "conversation.item.delete";
    item_id: string;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Create a response of the model. */
  interface ResponseCreate {
    type: "response.create";
    response?: ResponseFields | null;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Settings of one answer that differ from the session's. */
  interface ResponseFields {
    /** Either audio, which comes with its transcript, or text. */
    output_modalities?: Array<"audio" | "text"> | null;
    instructions?: string | null;
    audio?: ResponseAudioFields | null;
    tools?: Array<FunctionTool> | null;
    tool_choice?: "auto" | "none" | "required" | ToolOfChoice | null;
    parallel_tool_calls?: boolean | null;
    max_output_tokens?: number | "inf" | null;
    /** With `none` the response joins no conversation, and may be open beside one that does. */
    conversation?: "auto" | "none" | null;
    /** The input of the model in place of the conversation. */
    input?: Array<GivenMessage | GivenCall | GivenCallOutput | ItemReference> | null;
    /** Notes of the client, returned with the response. */
    metadata?: Record<string, unknown> | null;
    prompt?: StoredPrompt | null;
    reasoning?: Reasoning | null;
  }
  /** The audio settings of a response. */
  interface ResponseAudioFields {
    output?: ResponseOutputFields | null;
  }
  /** The audio settings of a response. */
  interface ResponseOutputFields {
    format?: PcmFormat | PcmuFormat | PcmaFormat | null;
    voice?: string | VoiceId | null;
  }
  /** An item of the conversation. */
  interface ItemReference {
    type: "item_reference";
    /** An id of the client's; else the server makes one. */
    id: string;
  }
  /** Cancel a response. */
  interface ResponseCancel {
    type: "response.cancel";
    response_id?: string | null;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** The first event: the session has a slot. */
  interface SessionCreated {
    type: "session.created";
    event_id: string;
    session: SessionResource;
    resume?: ResumeOffer;
  }
  /** The current settings of a session. */
  interface SessionResource {
    type?: "realtime";
    object?: "realtime.session";
    id: string;
    model: string;
    /** The latest end of the session, in Unix seconds. */
    expires_at: number;
    output_modalities: Array<"audio" | "text">;
    instructions: string;
    audio: AudioResource;
    include: Array<string> | null;
    tools: Array<Record<string, unknown>>;
    /** As given. */
    tool_choice: "auto" | "none" | "required" | Record<string, unknown>;
    parallel_tool_calls: boolean;
    max_output_tokens: number | "inf";
    /** As given. */
    truncation: "auto" | "disabled" | Record<string, unknown>;
    prompt?: null;
    /** As given. */
    tracing: "auto" | Record<string, unknown> | null;
    /** As given. */
    reasoning: Record<string, unknown> | null;
    /** Paths in `session` of accepted fields without effect; absent if there are none. */
    unsupported_fields?: Array<string>;
  }
  /** The audio settings of both directions. */
  interface AudioResource {
    input: InputResource;
    output: OutputResource;
  }
  /** The settings of the input audio. */
  interface InputResource {
    format: Format;
    /** As given. */
    transcription: Record<string, unknown> | null;
    /** As given. */
    noise_reduction: Record<string, unknown> | null;
    turn_detection: ServerVadResource | SemanticVadResource | null;
  }
  /** Raw mono audio: little-endian int16, or one of the laws of G.711. */
  interface Format {
    type: "audio/pcm" | "audio/pcma" | "audio/pcmu";
    rate?: 24000;
  }
  /** Turn detection by the server, which detects the start and end of speech. */
  interface ServerVadResource {
    type: "server_vad";
    threshold: number;
    prefix_padding_ms: number;
    silence_duration_ms: number;
    create_response: boolean;
    interrupt_response: boolean;
    idle_timeout_ms: number | null;
  }
  /** The model itself decides when it speaks. */
  interface SemanticVadResource {
    type: "semantic_vad";
    eagerness: "auto" | "high" | "low" | "medium";
    create_response: boolean;
    interrupt_response: boolean;
  }
  /** The settings of the output audio. */
  interface OutputResource {
    format: Format;
    voice: string;
    speed: number;
  }
  /** The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the number of the last event that came, within `window_s` seconds of the loss. */
  interface ResumeOffer {
    /** Valid once; `session.resumed` has the next token. */
    token: string;
    window_s: number;
  }
  /** The first event of a resumed connection, before all missed events. It has no number itself. */
  interface SessionResumed {
    type: "session.resumed";
    resume: ResumeOffer;
    /** The `last_event` that the client sent; the next event has the number after it. */
    last_event: number;
    /** The number of messages of the client that the session received; later ones were lost. */
    received: number;
  }
  /** The settings were changed; `session` has all of them. */
  interface SessionUpdated {
    type: "session.updated";
    event_id: string;
    session: SessionResource;
  }
  /** The conversation of the session, sent right after `session.created`. */
  interface ConversationCreated {
    type: "conversation.created";
    event_id: string;
    conversation: Conversation;
  }
  /** The one conversation of a session. */
  interface Conversation {
    id: string;
    object?: "realtime.conversation";
  }
  /** An item was added to the conversation; an item of a response is still empty. */
  interface ItemAdded {
    type: "conversation.item.added";
    event_id: string;
    previous_item_id: string | null;
    item: MessageItem | CallItem | CallOutputItem;
  }
  /** A message. */
  interface MessageItem {
    type: "message";
    id: string;
    object?: "realtime.item";
    status: "completed" | "in_progress" | "incomplete";
    role: "assistant" | "system" | "user";
    content: Array<Text | InputAudioContent | InputImageContent | Written | Spoken>;
  }
  /** Written text. */
  interface Text {
    type: "input_text";
    text: string;
  }
  /** Speech of the user. */
  interface InputAudioContent {
    type: "input_audio";
    transcript: string | null;
    /** Base64 in the input format, converted from the input of the model; only in `conversation.item.retrieved`. */
    audio?: string;
  }
  /** A picture. */
  interface InputImageContent {
    type: "input_image";
    /** A `data:` URI; only in `conversation.item.retrieved`. */
    image_url?: string;
    detail?: "auto" | "high" | "low";
  }
  /** Text of the model. */
  interface Written {
    type: "output_text";
    text: string;
  }
  /** Speech of the model. */
  interface Spoken {
    type: "output_audio";
    transcript: string;
    /** Base64; only in `conversation.item.retrieved`, as long as the server keeps it. */
    audio?: string;
  }
  /** A call that the model made. */
  interface CallItem {
    type: "function_call";
    id: string;
    object?: "realtime.item";
    status: "completed" | "in_progress" | "incomplete";
    name: string;
    call_id: string;
    arguments: string;
  }
  /** The result of a call. */
  interface CallOutputItem {
    type: "function_call_output";
    id: string;
    object?: "realtime.item";
    status: "completed" | "in_progress" | "incomplete";
    call_id: string;
    output: string;
  }
  /** An item is complete, or stays incomplete. */
  interface ItemDone {
    type: "conversation.item.done";
    event_id: string;
    previous_item_id: string | null;
    item: MessageItem | CallItem | CallOutputItem;
  }
  /** An item with its audio. */
  interface ItemRetrieved {
    type: "conversation.item.retrieved";
    event_id: string;
    item: MessageItem | CallItem | CallOutputItem;
  }
  /** An answer was cut, also for the model. */
  interface ItemTruncated {
    type: "conversation.item.truncated";
    event_id: string;
    item_id: string;
    content_index: number;
    audio_end_ms: number;
  }
  /** An item was deleted. */
  interface ItemDeleted {
    type: "conversation.item.deleted";
    event_id: string;
    item_id: string;
  }
  /** Appended audio was committed as this item. */
  interface AudioCommitted {
    type: "input_audio_buffer.committed";
    event_id: string;
    previous_item_id: string | null;
    item_id: string;
  }
  /** The appended audio was cleared. */
  interface AudioCleared {
    type: "input_audio_buffer.cleared";
    event_id: string;
  }
  /** A response begins. */
  interface ResponseCreated {
    type: "response.created";
    event_id: string;
    response: ResponseResource;
  }
  /** The current state of a response. */
  interface ResponseResource {
    id: string;
    object?: "realtime.response";
    status: "cancelled" | "completed" | "failed" | "in_progress" | "incomplete";
    status_details: StatusDetails | null;
    output: Array<MessageItem | CallItem | CallOutputItem>;
    conversation_id: string | null;
    output_modalities: Array<"audio" | "text">;
    max_output_tokens: number | "inf";
    audio: ResponseAudio;
    usage: Usage | null;
    metadata: Record<string, unknown> | null;
  }
  /** The reason why a response is not complete. */
  interface StatusDetails {
    type: "cancelled" | "failed" | "incomplete";
    reason?: "client_cancelled" | "max_output_tokens" | "turn_detected";
    error?: ResponseError;
  }
  /** The error of a failed response. */
  interface ResponseError {
    type: string;
    code: string;
    message: string;
  }
  /** The audio settings of a response. */
  interface ResponseAudio {
    output: ResponseOutput;
  }
  /** The audio settings of a response. */
  interface ResponseOutput {
    format: Format;
    voice: string;
  }
  /** Tokens of a response; of an interrupted response, those known at its end. */
  interface Usage {
    total_tokens: number;
    input_tokens: number;
    output_tokens: number;
    input_token_details: InputTokens;
    output_token_details: OutputTokens;
  }
  /** Input tokens by kind, cached ones included. */
  interface InputTokens {
    text_tokens: number;
    audio_tokens: number;
    image_tokens: number;
    cached_tokens: number;
    /** Absent if a part of an input of several kinds was cached: the worker reports only the sum. */
    cached_tokens_details?: CachedTokens;
  }
  /** Input tokens that were cached, by kind. */
  interface CachedTokens {
    text_tokens: number;
    audio_tokens: number;
    image_tokens: number;
  }
  /** Output tokens by kind. */
  interface OutputTokens {
    text_tokens: number;
    audio_tokens: number;
  }
  /** A response is over, however it ended. */
  interface ResponseDone {
    type: "response.done";
    event_id: string;
    response: ResponseResource;
  }
  /** An item of a response begins. */
  interface OutputItemAdded {
    type: "response.output_item.added";
    event_id: string;
    response_id: string;
    output_index: number;
    item: MessageItem | CallItem | CallOutputItem;
  }
  /** An item of a response is over. */
  interface OutputItemDone {
    type: "response.output_item.done";
    event_id: string;
    response_id: string;
    output_index: number;
    item: MessageItem | CallItem | CallOutputItem;
  }
  /** A part of an item begins. */
  interface ContentPartAdded {
    type: "response.content_part.added";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    content_index: number;
    part: AudioContent | TextContent;
  }
  /** Spoken content. */
  interface AudioContent {
    type: "audio";
    transcript: string;
  }
  /** Written content. */
  interface TextContent {
    type: "text";
    text: string;
  }
  /** A part of an item is over. */
  interface ContentPartDone {
    type: "response.content_part.done";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    content_index: number;
    part: AudioContent | TextContent;
  }
  /** The next audio of an answer. */
  interface AudioDelta {
    type: "response.output_audio.delta";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    content_index: number;
    /** Base64 of raw mono audio in the output format. */
    delta: Base64;
  }
  /** No more audio of the answer follows. */
  interface AudioDone {
    type: "response.output_audio.done";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    content_index: number;
  }
  /** Further words of a spoken answer. */
  interface TranscriptDelta {
    type: "response.output_audio_transcript.delta";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    content_index: number;
    delta: string;
  }
  /** All words of a spoken answer. */
  interface TranscriptDone {
    type: "response.output_audio_transcript.done";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    content_index: number;
    transcript: string;
  }
  /** Further text of a written answer. */
  interface TextDelta {
    type: "response.output_text.delta";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    content_index: number;
    delta: string;
  }
  /** The whole text of a written answer. */
  interface TextDone {
    type: "response.output_text.done";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    content_index: number;
    text: string;
  }
  /** A further part of the arguments of a tool call. */
  interface ArgumentsDelta {
    type: "response.function_call_arguments.delta";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    call_id: string;
    delta: string;
  }
  /** A complete tool call: `arguments` is a JSON object. */
  interface ArgumentsDone {
    type: "response.function_call_arguments.done";
    event_id: string;
    response_id: string;
    item_id: string;
    output_index: number;
    call_id: string;
    arguments: string;
    name: string;
  }
  /** The user has begun to speak: the client should stop playback. */
  interface SpeechStarted {
    type: "input_audio_buffer.speech_started";
    event_id: string;
    /** Position in all audio ever appended, where the padding before the speech begins. */
    audio_start_ms: number;
    /** The id of the item that the speech will become. */
    item_id: string;
  }
  /** The user has stopped speaking. */
  interface SpeechStopped {
    type: "input_audio_buffer.speech_stopped";
    event_id: string;
    audio_end_ms: number;
    item_id: string;
  }
  /** The user has been silent for so long that the model speaks again. */
  interface TimeoutTriggered {
    type: "input_audio_buffer.timeout_triggered";
    event_id: string;
    audio_start_ms: number;
    audio_end_ms: number;
    item_id: string;
  }
  /** Further words of the user. */
  interface TranscriptionDelta {
    type: "conversation.item.input_audio_transcription.delta";
    event_id: string;
    item_id: string;
    /** Always 0. */
    content_index: number;
    delta: string;
  }
  /** All words of the user, empty for silence. */
  interface TranscriptionCompleted {
    type: "conversation.item.input_audio_transcription.completed";
    event_id: string;
    item_id: string;
    /** Always 0. */
    content_index: number;
    transcript: string;
    usage: Duration;
  }
  /** The length of the transcribed audio. */
  interface Duration {
    type: "duration";
    seconds: number;
  }
  /** The audio of one item has no transcript; later items may have one. */
  interface TranscriptionFailed {
    type: "conversation.item.input_audio_transcription.failed";
    event_id: string;
    item_id: string;
    /** Always 0. */
    content_index: number;
    error: Failure;
  }
  /** The reason why there is no transcript. */
  interface Failure {
    type: string;
    code: string;
    message: string;
    param?: null;
  }
  /** An event was refused, a response failed, or the connection closes. */
  interface Error {
    type: "error";
    event_id: string;
    error: ErrorBody;
  }
  /** An error. */
  interface ErrorBody {
    type: "authentication_error" | "invalid_request_error" | "rate_limit_error" | "server_error";
    code: Code | null;
    /** A text for people: the field, the expected value and the received one. */
    message: string;
    /** Path of the field at fault, from the root of the event. */
    param: string | null;
    /** The `event_id` of the event at fault, if that had one. */
    event_id: string | null;
  }
  /** Error codes, for programs. */
  type Code = "beta_api_shape_disabled" | "cannot_update_voice" | "conversation_already_has_active_response" | "conversation_full" | "inference_failed" | "input_audio_buffer_commit_empty" | "input_audio_buffer_full" | "insufficient_quota" | "internal_error" | "invalid_api_key" | "invalid_event" | "invalid_json" | "invalid_model" | "invalid_session_type" | "invalid_type" | "invalid_value" | "item_create_duplicate_item_id" | "item_delete_invalid_item_id" | "item_retrieve_invalid_item_id" | "item_truncate_invalid_item_id" | "missing_model" | "missing_required_parameter" | "rate_limit_exceeded" | "response_cancel_not_active" | "resume_failed" | "server_overloaded" | "session_expired" | "slow_consumer" | "unknown_parameter" | "unsupported";
}

/** OpenAI's dialect of /v1/realtime?intent=transcription. */
export namespace TranscriptionGa {
  /** Events of a client. */
  type ClientEvent = SessionUpdate | AudioAppend | AudioCommit | AudioClear | ResponseCreate;
  /** Events of the server. */
  type ServerEvent = SessionCreated | SessionResumed | SessionUpdated | AudioCommitted | AudioCleared | SpeechStarted | SpeechStopped | ItemAdded | ItemDone | TranscriptionDelta | TranscriptionCompleted | TranscriptionFailed | Error;
  /** Change the given settings, all of them or none. */
  interface SessionUpdate {
    type: "session.update";
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
    session: SessionFields;
  }
  /** The settings of a session. */
  interface SessionFields {
    /** Only transcription: the type of a session cannot change. */
    type: "realtime" | "transcription";
    audio?: AudioFields | null;
    /** Accepted without effect: no log probabilities are sent. */
    include?: Array<"item.input_audio_transcription.logprobs"> | null;
  }
  /** The audio settings. */
  interface AudioFields {
    input?: InputFields | null;
  }
  /** The settings of the input audio. */
  interface InputFields {
    format?: PcmFormat | PcmuFormat | PcmaFormat | null;
    transcription?: TranscriptionConfig | null;
    noise_reduction?: NoiseReduction | null;
    turn_detection?: ServerVad | SemanticVad | null;
  }
  /** Little-endian int16. */
  interface PcmFormat {
    type: "audio/pcm";
    rate?: 24000 | null;
  }
  /** G.711 mu-law at 8 kHz, the law of North America and Japan. */
  interface PcmuFormat {
    type: "audio/pcmu";
    rate?: 8000 | null;
  }
  /** G.711 A-law at 8 kHz, the law of all other countries. */
  interface PcmaFormat {
    type: "audio/pcma";
    rate?: 8000 | null;
  }
  /** Transcription of the user's speech beside the conversation. Only `model` has an effect. */
  interface TranscriptionConfig {
    /** A model that transcribes; without it, or with one of OpenAI's names, any of them. */
    model?: string | null;
    language?: string | null;
    languages?: Array<string> | null;
    prompt?: string | null;
    keywords?: Array<string> | null;
    delay?: "high" | "low" | "medium" | "minimal" | "xhigh" | null;
  }
  /** The place of the microphone. It is accepted without effect. */
  interface NoiseReduction {
    type?: "far_field" | "near_field" | null;
    strength?: number | null;
  }
  /** Turn detection by the server, which detects the start and end of speech. */
  interface ServerVad {
    type: "server_vad";
    threshold?: number | null;
    prefix_padding_ms?: number | null;
    silence_duration_ms?: number | null;
    create_response?: boolean | null;
    interrupt_response?: boolean | null;
    idle_timeout_ms?: number | null;
  }
  /** The model itself decides when it speaks. */
  interface SemanticVad {
    type: "semantic_vad";
    eagerness?: "auto" | "high" | "low" | "medium" | null;
    create_response?: boolean | null;
    interrupt_response?: boolean | null;
  }
  /** Audio of the microphone; no event answers it. */
  interface AudioAppend {
    type: "input_audio_buffer.append";
    /** Base64 of raw mono audio in the input format; it may be cut anywhere. */
    audio: Base64;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Commit appended audio as an item. */
  interface AudioCommit {
    type: "input_audio_buffer.commit";
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Clear appended audio. */
  interface AudioClear {
    type: "input_audio_buffer.clear";
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Create a response of the model. */
  interface ResponseCreate {
    type: "response.create";
    response?: ResponseFields | null;
    /** The client's id of this event; an error about the event has it as `error.event_id`. */
    event_id?: string | null;
  }
  /** Settings of one answer that differ from the session's. */
  interface ResponseFields {
    /** Either audio, which comes with its transcript, or text. */
    output_modalities?: Array<"audio" | "text"> | null;
    instructions?: string | null;
    audio?: ResponseAudioFields | null;
    tools?: Array<FunctionTool> | null;
    tool_choice?: "auto" | "none" | "required" | ToolOfChoice | null;
    parallel_tool_calls?: boolean | null;
    max_output_tokens?: number | "inf" | null;
    /** With `none` the response joins no conversation, and may be open beside one that does. */
    conversation?: "auto" | "none" | null;
    /** The input of the model in place of the conversation. */
    input?: Array<GivenMessage | GivenCall | GivenCallOutput | ItemReference> | null;
    /** Notes of the client, returned with the response. */
    metadata?: Record<string, unknown> | null;
    prompt?: StoredPrompt | null;
    reasoning?: Reasoning | null;
  }
  /** The audio settings of a response. */
  interface ResponseAudioFields {
    output?: ResponseOutputFields | null;
  }
  /** The audio settings of a response. */
  interface ResponseOutputFields {
    format?: PcmFormat | PcmuFormat | PcmaFormat | null;
    voice?: string | VoiceId | null;
  }
  /** A voice that is registered with the server. */
  interface VoiceId {
    id: string;
  }
  /** A function of the client that the model may call. */
  interface FunctionTool {
    type: "function";
    name: string;
    description?: string | null;
    /** JSON Schema of its arguments. */
    parameters?: Record<string, unknown> | null;
  }
  /** The tool that the model has to call. */
  interface ToolOfChoice {
    type: "function";
    name: string;
  }
  /** A message. */
  interface GivenMessage {
    type: "message";
    role: "assistant" | "system" | "user";
    /** Input parts of the user, text parts of the system, output parts of the assistant. */
    content: Array<InputTextPart | InputAudioPart | InputImagePart | OutputTextPart | OutputAudioPart>;
    /** An id of the client's; else the server makes one. */
    id?: string | null;
    object?: "realtime.item" | null;
    status?: "completed" | "in_progress" | "incomplete" | null;
  }
  /** Written text. */
  interface InputTextPart {
    type: "input_text";
    text: string;
  }
  /** Speech in the input format of the session. Without audio its transcript is used. */
  interface InputAudioPart {
    type: "input_audio";
    /** Base64. */
    audio?: Base64 | null;
    transcript?: string | null;
  }
  /** A picture of at most 1 MiB and 4 megapixels. */
  interface InputImagePart {
    type: "input_image";
    /** A `data:` URI with the base64 of a JPEG, PNG or WebP file. */
    image_url: Base64;
    /** Returned as given, without effect. */
    detail?: "auto" | "high" | "low" | null;
  }
  /** Text of the model. */
  interface OutputTextPart {
    type: "output_text";
    text: string;
  }
  /** Speech of the model, of which only the transcript is used. */
  interface OutputAudioPart {
    type: "output_audio";
    transcript: string;
    /** Only absent: clients cannot supply audio of the model. */
    audio?: string | null;
  }
  /** A call that the model made. */
  interface GivenCall {
    type: "function_call";
    name: string;
    /** A JSON object. */
    arguments: string;
    call_id?: string | null;
    /** An id of the client's; else the server makes one. */
    id?: string | null;
    object?: "realtime.item" | null;
    status?: "completed" | "in_progress" | "incomplete" | null;
  }
  /** The result of a call. */
  interface GivenCallOutput {
    type: "function_call_output";
    call_id: string;
    output: string;
    /** An id of the client's; else the server makes one. */
    id?: string | null;
    object?: "realtime.item" | null;
    status?: "completed" | "in_progress" | "incomplete" | null;
  }
  /** An item of the conversation. */
  interface ItemReference {
    type: "item_reference";
    /** An id of the client's; else the server makes one. */
    id: string;
  }
  /** A prompt that OpenAI stores; none are stored here. */
  interface StoredPrompt {
    id: string;
    version?: string | null;
    variables?: Record<string, unknown> | null;
  }
  /** The effort of reasoning. It is accepted without effect. */
  interface Reasoning {
    effort?: "high" | "low" | "medium" | "minimal" | "xhigh" | null;
  }
  /** The first event, sent before the server reads any event. It has the fields of both protocols of this path. */
  interface SessionCreated {
    type: "session.created";
    event_id: string;
    id: string;
    /** Unix seconds. */
    created: number;
    session: SessionResource;
    resume?: ResumeOffer;
  }
  /** The current settings of a session. */
  interface SessionResource {
    type?: "transcription";
    object?: "realtime.transcription_session";
    id: string;
    /** The latest end of the session, in Unix seconds. */
    expires_at: number;
    audio: AudioResource;
    include: Array<string> | null;
    /** Paths in `session` of accepted fields without effect; absent if there are none. */
    unsupported_fields?: Array<string>;
  }
  /** The audio settings. */
  interface AudioResource {
    input: InputResource;
  }
  /** The settings of the input audio. */
  interface InputResource {
    format: Format;
    /** As given. */
    transcription: Record<string, unknown> | null;
    /** As given. */
    noise_reduction: Record<string, unknown> | null;
    turn_detection: VadResource | null;
  }
  /** Raw mono audio: little-endian int16, or one of the laws of G.711. */
  interface Format {
    type: "audio/pcm" | "audio/pcma" | "audio/pcmu";
    rate?: 24000;
  }
  /** Turn detection by the server, which detects the start and end of speech. */
  interface VadResource {
    type: "server_vad";
    threshold: number;
    prefix_padding_ms: number;
    silence_duration_ms: number;
  }
  /** The offer to resume the session: open the same URL with `resume=` the token and `last_event=` the number of the last event that came, within `window_s` seconds of the loss. */
  interface ResumeOffer {
    /** Valid once; `session.resumed` has the next token. */
    token: string;
    window_s: number;
  }
  /** The first event of a resumed connection, before all missed events. It has no number itself. */
  interface SessionResumed {
    type: "session.resumed";
    resume: ResumeOffer;
    /** The `last_event` that the client sent; the next event has the number after it. */
    last_event: number;
    /** The number of messages of the client that the session received; later ones were lost. */
    received: number;
  }
  /** The settings were changed; `session` has all of them. */
  interface SessionUpdated {
    type: "session.updated";
    event_id: string;
    session: SessionResource;
  }
  /** Appended audio was committed as this item. */
  interface AudioCommitted {
    type: "input_audio_buffer.committed";
    event_id: string;
    previous_item_id: string | null;
    item_id: string;
  }
  /** The appended audio was cleared. */
  interface AudioCleared {
    type: "input_audio_buffer.cleared";
    event_id: string;
  }
  /** The user has begun to speak: the client should stop playback. */
  interface SpeechStarted {
    type: "input_audio_buffer.speech_started";
    event_id: string;
    /** Position in all audio ever appended, where the padding before the speech begins. */
    audio_start_ms: number;
    /** The id of the item that the speech will become. */
    item_id: string;
  }
  /** The user has stopped speaking. */
  interface SpeechStopped {
    type: "input_audio_buffer.speech_stopped";
    event_id: string;
    audio_end_ms: number;
    item_id: string;
  }
  /** An item was added to the conversation; an item of a response is still empty. */
  interface ItemAdded {
    type: "conversation.item.added";
    event_id: string;
    previous_item_id: string | null;
    item: MessageItem | CallItem | CallOutputItem;
  }
  /** A message. */
  interface MessageItem {
    type: "message";
    id: string;
    object?: "realtime.item";
    status: "completed" | "in_progress" | "incomplete";
    role: "assistant" | "system" | "user";
    content: Array<Text | InputAudioContent | InputImageContent | Written | Spoken>;
  }
  /** Written text. */
  interface Text {
    type: "input_text";
    text: string;
  }
  /** Speech of the user. */
  interface InputAudioContent {
    type: "input_audio";
    transcript: string | null;
    /** Base64 in the input format, converted from the input of the model; only in `conversation.item.retrieved`. */
    audio?: string;
  }
  /** A picture. */
  interface InputImageContent {
    type: "input_image";
    /** A `data:` URI; only in `conversation.item.retrieved`. */
    image_url?: string;
    detail?: "auto" | "high" | "low";
  }
  /** Text of the model. */
  interface Written {
    type: "output_text";
    text: string;
  }
  /** Speech of the model. */
  interface Spoken {
    type: "output_audio";
    transcript: string;
    /** Base64; only in `conversation.item.retrieved`, as long as the server keeps it. */
    audio?: string;
  }
  /** A call that the model made. */
  interface CallItem {
    type: "function_call";
    id: string;
    object?: "realtime.item";
    status: "completed" | "in_progress" | "incomplete";
    name: string;
    call_id: string;
    arguments: string;
  }
  /** The result of a call. */
  interface CallOutputItem {
    type: "function_call_output";
    id: string;
    object?: "realtime.item";
    status: "completed" | "in_progress" | "incomplete";
    call_id: string;
    output: string;
  }
  /** An item is complete, or stays incomplete. */
  interface ItemDone {
    type: "conversation.item.done";
    event_id: string;
    previous_item_id: string | null;
    item: MessageItem | CallItem | CallOutputItem;
  }
  /** Further words of the user. */
  interface TranscriptionDelta {
    type: "conversation.item.input_audio_transcription.delta";
    event_id: string;
    item_id: string;
    /** Always 0. */
    content_index: number;
    delta: string;
  }
  /** All words of the user, empty for silence. */
  interface TranscriptionCompleted {
    type: "conversation.item.input_audio_transcription.completed";
    event_id: string;
    item_id: string;
    /** Always 0. */
    content_index: number;
    transcript: string;
    usage: Duration;
  }
  /** The length of the transcribed audio. */
  interface Duration {
    type: "duration";
    seconds: number;
  }
  /** The audio of one item has no transcript; later items may have one. */
  interface TranscriptionFailed {
    type: "conversation.item.input_audio_transcription.failed";
    event_id: string;
    item_id: string;
    /** Always 0. */
    content_index: number;
    error: Failure;
  }
  /** The reason why there is no transcript. */
  interface Failure {
    type: string;
    code: string;
    message: string;
    param?: null;
  }
  /** An event was refused, a response failed, or the connection closes. */
  interface Error {
    type: "error";
    event_id: string;
    error: ErrorBody;
  }
  /** An error. */
  interface ErrorBody {
    type: "authentication_error" | "invalid_request_error" | "rate_limit_error" | "server_error";
    code: Code | null;
    /** A text for people: the field, the expected value and the received one. */
    message: string;
    /** Path of the field at fault, from the root of the event. */
    param: string | null;
    /** The `event_id` of the event at fault, if that had one. */
    event_id: string | null;
  }
  /** Error codes, for programs. */
  type Code = "beta_api_shape_disabled" | "cannot_update_voice" | "conversation_already_has_active_response" | "conversation_full" | "inference_failed" | "input_audio_buffer_commit_empty" | "input_audio_buffer_full" | "insufficient_quota" | "internal_error" | "invalid_api_key" | "invalid_event" | "invalid_json" | "invalid_model" | "invalid_session_type" | "invalid_type" | "invalid_value" | "item_create_duplicate_item_id" | "item_delete_invalid_item_id" | "item_retrieve_invalid_item_id" | "item_truncate_invalid_item_id" | "missing_model" | "missing_required_parameter" | "rate_limit_exceeded" | "response_cancel_not_active" | "resume_failed" | "server_overloaded" | "session_expired" | "slow_consumer" | "unknown_parameter" | "unsupported";
}
