package simulation

// Result is how a history ended.
type Result struct {
	// Violations are the properties that did not hold, each with what happened; none if all is well.
	Violations []string
	// Trace is what happened, line by line. The order of what happened at one instant is nobody's.
	Trace []string
	// Requests is how many requests there were, by class of client, verb and resource.
	Requests map[string]int
}
