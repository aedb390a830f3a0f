/** Recorded questions of the page, with their texts. */
export const EXAMPLES = [
  { name: "name", text: "hey who are you" },
  { name: "counting", text: "count up to eight now" },
  { name: "abilities", text: "please tell me what you can do please" },
  { name: "how_are_you", text: "tell me how is it going" },
  { name: "light", text: "now switch on the light" },
  { name: "direction", text: "this is the front left now" },
  { name: "joke", text: "now tell me another joke please" },
];
