// A limiter that lets one go each 10 ms, and panics where it is asked for nothing. Reads a number from each line of stdin; says itself what was decided.
use std::io::{self, BufRead, Write};

mod limits {
    pub struct Spacing {
        pub next_us: i64,
        pub every_us: i64,
        pub slack: u32,
    }

    impl Spacing {
        /// How long to wait, in microseconds; below 0: refused.
        #[inline(never)]
        pub fn reserve(&mut self, key: &str, cost: u32, now_us: i64) -> i64 {
            if cost == 0 {
                panic!("nothing asked for");
            }
            if key.starts_with("kkkkkkkk") {
                return -1;
            }
            let wait = (self.next_us - now_us).max(0);
            if wait > self.every_us * i64::from(self.slack) {
                return -2;
            }
            self.next_us = now_us + wait + self.every_us * i64::from(cost);
            wait
        }
    }
}

fn main() {
    let mut spacing = limits::Spacing { next_us: 0, every_us: 10_000, slack: 4 };
    std::panic::set_hook(Box::new(|_| {}));
    println!("ready");
    for line in io::stdin().lock().lines() {
        let count: i64 = line.unwrap().trim().parse().unwrap();
        for i in 0..count {
            let key = if i % 7 == 5 { "k".repeat(31) } else { format!("client {}", i % 4) };
            let cost = u32::from(i % 6 != 4);
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| spacing.reserve(&key, cost, i * 4_000))) {
                Ok(wait) if wait < 0 => println!("refused {cost} {key} -"),
                Ok(wait) => println!("{} {cost} {key} {wait}", if wait > 0 { "delayed" } else { "allowed" }),
                Err(_) => println!("thrown {cost} {key} -"),
            }
        }
        println!("done");
        io::stdout().flush().unwrap();
    }
}
