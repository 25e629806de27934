package hashring

import (
	"container/list"
	"sync"
)

// Cache shares tables between all users of the same set of shards, so that each table is built once while it is in use. It keeps
// the most recently used tables, up to a fixed number. It may be used by any number of goroutines.
type Cache struct {
	size  int
	build func([]string) *Table

	mu      sync.Mutex
	entries map[string]*list.Element // by fingerprint; the elements contain *entry
	recent  *list.List               // the most recently used first
}

// entry is a table that is built on first use.
type entry struct {
	fingerprint string
	table       func() *Table
}

// NewCache returns a cache of at most size tables of 64 KiB each, or 192 KiB after a call of [Table.Ranking]. A size below 1
// counts as 1.
func NewCache(size int) *Cache {
	return &Cache{
		size:    max(size, 1),
		build:   New,
		entries: map[string]*list.Element{},
		recent:  list.New(),
	}
}

// Get returns the table of the given shards, in any order. Of several concurrent callers with the same set, one builds the table
// and the others wait for it. Callers with other sets do not wait.
func (c *Cache) Get(shards []string) *Table {
	names := canonical(shards)
	return c.entry(names).table()
}

func (c *Cache) entry(names []string) *entry {
	id := fingerprint(names)
	c.mu.Lock()
	defer c.mu.Unlock()

	if e, ok := c.entries[id]; ok {
		c.recent.MoveToFront(e)
		return e.Value.(*entry)
	}

	e := &entry{fingerprint: id, table: sync.OnceValue(func() *Table { return c.build(names) })}

	c.entries[id] = c.recent.PushFront(e)
	if c.recent.Len() > c.size {
		oldest := c.recent.Remove(c.recent.Back()).(*entry)
		delete(c.entries, oldest.fingerprint)
	}

	return e
}
