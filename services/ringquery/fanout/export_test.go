package fanout

// Readers returns the number of open readers.
func (h *Hub[T]) Readers() int {
	h.mu.Lock()
	defer h.mu.Unlock()

	n := 0
	for _, t := range h.topics {
		n += t.readers
	}

	return n
}
