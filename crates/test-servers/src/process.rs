//! Processes: as which user they run, when they end, and signals to them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How long a server may take to start, and to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct User {
    pub(crate) id: u32,
    pub(crate) group: u32,
}

/// PostgreSQL and PgBouncer refuse to run as root: then they run as this user, else as who we are.
pub(crate) static USER: LazyLock<Option<User>> = LazyLock::new(|| {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let unprivileged = || named(&users, "postgres").or_else(|| named(&users, "nobody"));
    if own_user() == 0 { unprivileged() } else { None }
});

pub(crate) fn own_user() -> u32 {
    fs::metadata("/proc/self").expect("Linux tells who we are").uid()
}

fn named(users: &str, name: &str) -> Option<User> {
    let user = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = user.split(':').skip(2).map(|field| field.parse().ok());
    Some(User { id: fields.next()??, group: fields.next()?? })
}

/// A command as the user that servers run as.
pub(crate) fn command(program: impl AsRef<Path>) -> Command {
    as_server_user(Command::new(program.as_ref()))
}

fn as_server_user(mut command: Command) -> Command {
    command.stdin(Stdio::null());
    if let Some(user) = &*USER {
        command.uid(user.id).gid(user.group);
    }
    command
}

/// Runs a command in a folder to its end; what it printed.
pub(crate) fn run(command: &mut Command, folder: &Path) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.current_dir(folder).output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Starts a server that is sent SIGQUIT when this process ends, even by SIGKILL. Its output goes to a log.
pub(crate) fn start(program: &Path, arguments: &[&str], folder: &Path, log: &Path) -> Result<Child, String> {
    start_until("QUIT", program, arguments, folder, log)
}

/// The same with SIGKILL, for servers that survive SIGQUIT: Java prints its stacks instead.
pub(crate) fn start_killed(
    program: &str,
    arguments: &[String],
    folder: &Path,
    log: &Path,
) -> Result<Child, String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    start_until("KILL", Path::new(program), &arguments, folder, log)
}

fn start_until(
    signal: &str,
    program: &Path,
    arguments: &[&str],
    folder: &Path,
    log: &Path,
) -> Result<Child, String> {
    let log = File::options().create(true).append(true).open(log).map_err(|error| error.to_string())?;
    let errors = log.try_clone().map_err(|error| error.to_string())?;
    let mut command = command("setpriv");
    command.args(["--pdeathsig", signal, "--"]).arg(program).args(arguments);
    command.current_dir(folder).stdout(log).stderr(errors);
    spawn(command).map_err(|error| format!("cannot start {}: {error}", program.display()))
}

/// The kernel sends the signal when the *thread* that started the child ends, and tests' threads end early.
fn spawn(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static STARTER: LazyLock<Mutex<mpsc::Sender<Job>>> = LazyLock::new(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in jobs {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (answer, child) = mpsc::channel();
    STARTER.lock().expect("no starter panics").send((command, answer)).expect("the starter never ends");
    child.recv().expect("the starter never ends")
}

pub(crate) fn signal(name: &str, processes: &[u32]) {
    if processes.is_empty() {
        return;
    }
    let ids: Vec<String> = processes.iter().map(u32::to_string).collect();
    // The shell's own: the program `kill` is not everywhere.
    let kill = format!("kill -{name} {}", ids.join(" "));
    let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
}

/// Ends a server, frozen or not, and waits for it.
pub(crate) fn end(child: &mut Child) {
    signal("QUIT", &[child.id()]);
    signal("CONT", &[child.id()]);
    let ended = wait_until(|| matches!(child.try_wait(), Ok(Some(_)) | Err(_)));
    if !ended {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Ends whatever runs in a folder. A server's working directory is its own folder, and no other process has it.
pub(crate) fn end_all_in(folder: &Path) {
    let running = all_in(folder);
    signal("QUIT", &running);
    signal("CONT", &running);
    if !wait_until(|| all_in(folder).is_empty()) {
        signal("KILL", &all_in(folder));
    }
}

pub(crate) fn all_in(folder: &Path) -> Vec<u32> {
    let inside = |id: &u32| fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|at| at.starts_with(folder));
    all().filter(inside).collect()
}

pub(crate) fn children(parent: u32) -> Vec<u32> {
    all().filter(|id| parent_of(*id) == Some(parent)).collect()
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent_of(id: u32) -> Option<u32> {
    stat(id)?.1.parse().ok()
}

/// Whether it was stopped by a signal and does nothing more.
pub(crate) fn is_stopped(id: u32) -> bool {
    stat(id).is_some_and(|(state, _)| state == "T")
}

/// State and parent.
fn stat(id: u32) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name before it is in parentheses and may hold anything.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().map(str::to_owned);
    Some((fields.next()?, fields.next()?))
}

/// Asks until it is so, or patience ends.
pub(crate) fn wait_until(mut so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}
